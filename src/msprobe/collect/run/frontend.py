"""What a framework provides to the lifecycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Protocol

from msprobe.collect.probe import StepHooks
from msprobe.collect.step_context import StepContext


class Frontend(Protocol):
    name: str
    model_kind: str
    numbers_values: bool
    """Whether tensors in records have the numbers of their values, at levels that see all writes."""

    def rank(self) -> Optional[int]:
        """The global rank, or None in a run without ranks."""

    def filter_rank(self) -> int:
        """The rank that the `rank` key is compared with."""

    def listed_models(self, model: Any) -> Optional[list[Any]]:
        """The models as a list; None if `model` is not a model of the framework."""

    def mode_directory(self, models: Sequence[Any]) -> Optional[str]:
        """`pynative` if a part of the models is compiled and recorded in another directory, otherwise None."""

    def hooks(self, context: StepContext) -> StepHooks: ...

    def explain_unmatched(self, entry: str) -> Optional[str]:
        """Why an entry of scope or list can never match a call, if known."""

    def facts(self) -> dict[str, Any]:
        """Versions, devices, determinism: the framework's part of run.json."""

    def parameter_bytes(self, models: Sequence[Any]) -> int: ...
