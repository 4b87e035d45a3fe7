"""The names of the modules below a model: `{Module|Cell}[.{index}].{path}.{Class}`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional


class ModuleFacts(NamedTuple):
    """What a frontend knows about one module."""

    kind: str
    """The name of its class."""
    recorded: bool
    """Whether it has a name even if it is the model itself."""
    children: Iterable[tuple[str, Any]]
    """The modules in it, the last one first; none if they are hidden in compiled code."""


def name_modules(
    models: Sequence[Any], prefix: str, numbered: bool, describe: Callable[[Any], ModuleFacts]
) -> Iterator[tuple[str, Any, Optional[str]]]:
    """For every module below the models: its name, the module, and the name of the module around it.

    A shared module has the first of its paths. `numbered`: the names contain the index of the model.
    """
    seen: set[int] = set()
    for index, model in enumerate(models):
        start = f"{prefix}.{index}" if numbered else prefix
        waiting: list[tuple[str, Any, Optional[str]]] = [("", model, None)]
        while waiting:
            path, module, around = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            kind, recorded, children = describe(module)
            title = None
            if path or recorded:
                title = f"{start}.{path}.{kind}" if path else f"{start}.{kind}"
                yield title, module, around
            for name, child in children:
                if child is not None:
                    waiting.append((f"{path}.{name}" if path else name, child, title))
