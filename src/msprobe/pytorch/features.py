"""What differs between the versions of PyTorch that msprobe supports, found by looking, not by comparing versions.

Each function says which versions differ. Other code asks here; a private name of torch that moved has its line here.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import torch


def eval_frame() -> Any:
    """The module of dynamo that enters compiled code, or None. It is imported here (making an optimizer imports it
    too): a later import, by the first torch.compile of the script, would run inside our mode."""
    try:
        return importlib.import_module("torch._dynamo.eval_frame")
    except ImportError:
        return None


@functools.lru_cache(maxsize=1)
def wrapped_callback_name() -> str:
    """Where the wrappers of a backend keep what they wrap: since 2.9 apart from those of functions."""
    wrapper = importlib.import_module("torch._dynamo.convert_frame").CatchErrorsWrapper
    names = wrapper.__init__.__code__.co_names
    return "_torchdynamo_orig_backend" if "_torchdynamo_orig_backend" in names else "_torchdynamo_orig_callable"


@functools.lru_cache(maxsize=1)
def disabling_uses_switch() -> bool:
    """Whether a function for which compiling is disabled always begins with dynamo's switch. Since 2.14 it begins with
    `set_eval_frame`, and uses the switch only to turn compiling on again."""
    dynamo = eval_frame()
    original, called = dynamo._maybe_set_eval_frame, []

    def noting(callback: Any) -> Any:
        called.append(callback)
        return original(callback)

    dynamo._maybe_set_eval_frame = noting
    try:
        torch.compiler.disable(lambda: None)()
    finally:
        dynamo._maybe_set_eval_frame = original
    return bool(called)


def context_parallel_module() -> Any:
    """The module of context parallelism, if the script has imported it; it moved in 2.10."""
    package = "torch.distributed.tensor.experimental."
    return sys.modules.get(f"{package}_context_parallel._attention") or sys.modules.get(f"{package}_attention")


def inductor_names_kernels() -> bool:
    """Whether Inductor can say which node a kernel computes. 2.9 can, 2.7 cannot."""
    config = importlib.import_module("torch._inductor.config")
    debug = importlib.import_module("torch._inductor.debug")
    return hasattr(config.trace, "provenance_tracking_level") and hasattr(debug, "create_kernel_information_json")
