"""What directed runs (`msprobe again`, `prove`, `replay --run`) of all frameworks have in common."""

from __future__ import annotations

from typing import Any, Callable, Optional

from msprobe.collect.run.lifecycle import Lifecycle
from msprobe.collect.seeding import Sample
from msprobe.config import Settings
from msprobe.config.directions import Directions, Repeat
from msprobe.dump.names import backward_of


class StepActs:
    """What the directions want in one step of one rank, and the draws of random numbers that it has seen."""

    def __init__(self, directions: Directions, step: int, rank: Optional[int]) -> None:
        wanted = directions.repeat
        self.repeat = wanted if wanted is not None and (wanted.step, wanted.rank) == (step, rank) else None
        self.draws: list[tuple[str, Sample]] = []

    def wants(self, name: str) -> Optional[Repeat]:
        """The repetition at this forward call, or at its backward."""
        wanted = self.repeat
        return wanted if wanted is not None and wanted.name in (name, backward_of(name)) else None


class DirectedLifecycle(Lifecycle):
    """Also collects before the model is known."""

    def _remember(self, model: Any, token_range: Any) -> None:
        if model is not None:
            super()._remember(model, token_range)


def make_directed(debugger: Any, settings: Settings, make: Callable[[Settings], Lifecycle]) -> Any:
    """The only debugger of this process, of a class of a framework, with the lifecycle of a directed run."""

    class Directed(debugger):  # type: ignore[misc]
        @classmethod
        def _make_lifecycle(cls, settings: Settings) -> Lifecycle:
            return make(settings)

    made = Directed._create(settings)
    debugger._current = made
    return made
