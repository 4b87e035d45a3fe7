"""What the suite consists of: faults with the answer that is expected, and clean pairs.

The files in `faults/` and `clean.py` fill FAULTS and CLEAN by calling `fault` and `clean`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Optional

from training import Plant, Recipe

DISTRIBUTED = "ddp"
"""The model that is trained by two processes: GPT-2 in DistributedDataParallel."""
IN_TWO_PROCESSES = {DISTRIBUTED: "gpt2", "olmo2_ddp": "olmo2", "starcoder2_fsdp": "starcoder2"}
IN_TWO_PROCESSES |= {"mistral_ddp": "mistral", "regnet_ddp": "regnet", "nemotron_fsdp": "nemotron"}
"""Models that are trained by two processes, and the network that each is."""
SAME_INPUTS = "same inputs|equal inputs|inputs with the same|inputs that agree"
"""How a sentence says that a call was given the same."""
KINDS = ("forward", "backward", "optimizer", "precision", "data", "weights", "wiring", "distribution")


@dataclass(frozen=True)
class Expect:
    """The right answer.

    The place: `modules` (paths of the modules that may be named or hold the call; "" is the top level,
    * any text) and `call` (a
    pattern of the call's name), `parameter` (a parameter's full name), or `optimizer` (something after the backward).
    The sentence: every pattern of `says` is in it, none of `never`.
    """

    modules: tuple[str, ...] = ()
    call: str = ""
    parameter: str = ""
    optimizer: bool = False
    direction: str = ""
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    source: str = ""
    """A pattern of the source line that is the fault itself (a hook), whatever module it is in."""
    step: Optional[int] = 0
    rank: Optional[int] = None
    no_blame: bool = False
    """A difference of the whole run, of which no call may be blamed."""


@dataclass(frozen=True)
class Side:
    """One run of a pair."""

    recipe: Recipe
    config: str = "{}"
    plant: Optional[Plant] = None
    label: str = ""

    @property
    def key(self) -> str:
        """Equal for runs that are the same; a side with an unnamed plant is not shared."""
        return json.dumps([asdict(self.recipe), self.config, self.label])


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    kind: str
    golden: Side
    target: Side
    expect: Optional[Expect] = None
    representative: bool = False

    @property
    def id(self) -> str:
        return f"{self.model}/{self.name}"

    @property
    def processes(self) -> int:
        return 2 if self.model in IN_TWO_PROCESSES else 1


FAULTS: list[Case] = []
CLEAN: list[Case] = []


def fault(
    model: str,
    name: str,
    kind: str,
    plant: Optional[Plant],
    expect: Expect,
    *,
    recipe: Recipe = Recipe(),  # noqa: B008
    config: Optional[dict[str, Any]] = None,
    wrong: Optional[dict[str, Any]] = None,
    wrong_config: Optional[dict[str, Any]] = None,
    golden_plant: Optional[Plant] = None,
    representative: bool = False,
) -> None:
    """`recipe` and `config` are those of the golden run; `wrong` and `wrong_config` are what the target changes."""
    golden, target = _sides(recipe, config, wrong, wrong_config, plant)
    if golden_plant is not None:
        golden = replace(golden, plant=golden_plant, label=f"{model}/{name}")
    FAULTS.append(Case(name, model, kind, golden, target, expect, representative))


def clean(
    model: str,
    name: str,
    plant: Optional[Plant] = None,
    *,
    recipe: Recipe = Recipe(),  # noqa: B008
    config: Optional[dict[str, Any]] = None,
    other: Optional[dict[str, Any]] = None,
    other_config: Optional[dict[str, Any]] = None,
    golden_plant: Optional[Plant] = None,
    expect: Optional[Expect] = None,
    representative: bool = False,
) -> None:
    """A pair that computes the same; `other` and `other_config` are what the target changes."""
    golden, target = _sides(recipe, config, other, other_config, plant)
    if golden_plant is not None:
        golden = replace(golden, plant=golden_plant, label=f"{model}/{name}")
    CLEAN.append(Case(name, model, "clean", golden, target, expect, representative))


def _sides(
    recipe: Recipe,
    config: Optional[dict[str, Any]],
    changes: Optional[dict[str, Any]],
    config_changes: Optional[dict[str, Any]],
    plant: Optional[Plant],
) -> tuple[Side, Side]:
    golden = Side(recipe, json.dumps(config or {}))
    target = Side(replace(recipe, **(changes or {})), json.dumps({**(config or {}), **(config_changes or {})}), plant)
    return golden, target
