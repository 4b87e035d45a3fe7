"""The recommendation as configuration of torchao and of TransformerEngine. Neither is needed to make it."""

from __future__ import annotations

import json
import re

from msprobe.precision.estimate import Verdict

TORCHAO, TRANSFORMER_ENGINE = "torchao", "te"
TARGETS = (TORCHAO, TRANSFORMER_ENGINE)

_FLOAT8 = {"fp8-e4m3": "tensorwise", "fp8-e4m3-row": "rowwise", "fp8-e4m3-row-pow2": "rowwise"}
_RECIPES = {
    "fp8": "Float8CurrentScaling()",
    "block": "Float8BlockScaling()",
    "mxfp8": "MXFP8BlockScaling()",
    "nvfp4": "NVFP4BlockScaling()",
}


_NVFP4 = (
    "from torchao.prototype.moe_training.nvfp4_training.nvfp4_training import NVFP4TrainingConfig\n",
    "NVFP4TrainingConfig()",
)
"""What to import, and the configuration."""


def _mxfp8(mode: str) -> tuple[str, str]:
    imports = (
        "from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig\n"
        "from torchao.prototype.mx_formats import ScaleCalculationMode\n"
    )
    return imports, f"MXFP8TrainingOpConfig(scale_calculation_mode=ScaleCalculationMode.{mode.upper()})"


def snippet(verdict: Verdict, target: str) -> str:
    return _torchao(verdict) if target == TORCHAO else _transformer_engine(verdict)


def _torchao(verdict: Verdict) -> str:
    name = verdict.form.name
    keep = "".join(f"    {json.dumps(module)},\n" for module in verdict.keep_modules)
    kept = f"modules below {verdict.budget:.1f} dB stay in bf16" if keep else "every module meets the budget"
    listed = f"{{\n{keep}}}" if keep else "set()"
    head = f"# {name}: {kept} (msprobe precision)\nKEEP = {listed}\n\n"
    wanted = "def wanted(module, name):\n    return isinstance(module, torch.nn.Linear) and name not in KEEP\n\n"
    if name in _FLOAT8:
        return (
            "import torch\nfrom torchao.float8 import Float8LinearConfig, convert_to_float8_training\n\n"
            f"{head}\n{wanted}\n"
            f'config = Float8LinearConfig.from_recipe_name("{_FLOAT8[name]}")\n'
            "convert_to_float8_training(model, config=config, module_filter_fn=wanted)\n"
        )
    if name.startswith("mxfp8") or name == "nvfp4":
        place, config = _mxfp8(str(verdict.form.mode)) if name.startswith("mxfp8") else _NVFP4
        bias = "; there a bias of these modules gets no gradient" if name != "nvfp4" else ""
        return (
            f"# tested with torchao 0.18{bias}\nimport torch\n{place}from torchao.quantization import quantize_\n\n"
            f"{head}\n{wanted}\nquantize_(model, {config}, filter_fn=wanted)\n"
        )
    return (
        f"import torch\n\n{head}\n{wanted}\n"
        f"# torchao has no stable recipe that trains in {name}: give `wanted` to the converter that you use.\n"
    )


def _transformer_engine(verdict: Verdict) -> str:
    """The file of features of TransformerEngine's debug tools, which switch quantisation off for chosen layers."""
    name = verdict.form.name
    kind = "block" if name.startswith("fp8") and "128" in name else name.split("-")[0]
    recipe = _RECIPES.get(kind)
    head = f"# {name}: layers below {verdict.budget:.1f} dB stay in bf16 (msprobe precision)\n"
    head += (
        f"# recipe: transformer_engine.common.recipe.{recipe}\n"
        if recipe
        else f"# TransformerEngine has no recipe for {name}.\n"
    )
    if not verdict.keep_modules:
        return head + "# every layer meets the budget\n"
    pattern = "|".join(re.escape(module) for module in verdict.keep_modules)
    return (
        f"{head}keep_in_bf16:\n  enabled: True\n  layers:\n"
        f"    layer_name_regex_pattern: {json.dumps(f'(.*[.])?({pattern})')}\n"
        "  transformer_engine:\n    DisableFP8Layer:\n      enabled: True\n"
    )
