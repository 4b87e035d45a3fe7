"""Which hooks a level installs, as data: `LEVELS["mix"].modules`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """What is hooked. With `kernels`, modules and APIs get no records: they only give the names around a kernel."""

    modules: bool = False
    apis: bool = False
    kernels: bool = False
    needs_model: bool = False
    saves_variables: bool = False  # save() works

    @property
    def sees_calls(self) -> bool:
        return self.modules or self.apis

    @property
    def sees_writes(self) -> bool:
        """Whether it sees every call that writes memory and records what it sees: values can then be numbered."""
        return self.apis and not self.kernels


LEVELS = {
    "L0": Level(modules=True, needs_model=True),
    "L1": Level(apis=True),
    "mix": Level(modules=True, apis=True, needs_model=True),
    "L2": Level(modules=True, apis=True, kernels=True),
    "debug": Level(saves_variables=True),
}
