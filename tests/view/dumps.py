"""Dumps for the tests of the view: small real runs, and hand-written ones where several ranks are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import planted
from written import call, scalar, tensor, write_dump

LAYERS = 6


def planted_pair(root: Path, fault: str, **options: Any) -> tuple[Path, Path]:
    """A real training with a fault, and the same without it."""
    target = planted.run("transformer", root / "target", fault, **options)
    golden = planted.run("transformer", root / "golden", None, **options)
    return target, golden


def ranks_dump(root: Path, ranks: int = 4, steps: int = 2, wrong_rank: Optional[int] = None) -> Path:
    """Layers with an all_reduce after each; on `wrong_rank` the third layer is wrong, and so is all after it."""
    for step in range(steps):
        for rank in range(ranks):
            data: dict[str, Any] = {}
            construct: dict[str, Any] = {}
            for layer in range(LAYERS):
                wrong = wrong_rank is not None and layer >= 2
                own = 1.1 if wrong and rank == wrong_rank else 1.0
                given = 1.1 if wrong and layer > 2 else 1.0
                out = 1.0 + layer + 0.1 * step
                name = f"Functional.linear.{layer}.forward"
                made = 1.1 if wrong and layer > 2 else own
                data[name] = call(tensor(0.5 + layer + given), output=tensor((out + rank) * made))
                construct[name] = f"Module.layers.{layer}.Linear.forward.0"
                reduce = f"Distributed.all_reduce.{layer}.forward"
                share = 1.1 if wrong else 1.0
                data[reduce] = call(tensor((out + rank) * made), output=tensor(out * ranks * share))
                construct[reduce] = None
            stacks = {"0": [list(data), ["File train.py, line 7, in forward, \n return F.linear(x)"]]}
            write_dump(root, data, construct, stacks, step=step, rank=rank)
    return root


def unmatched_pair(root: Path) -> tuple[Path, Path]:
    """Two runs that share two calls; each has one more, which no rule pairs with the other's."""
    shared = {
        "Functional.linear.0.forward": call(tensor(1.0), output=tensor(2.0)),
        "Functional.relu.0.forward": call(tensor(4.0), output=tensor(5.0)),
    }
    ours = {"Functional.mish.0.forward": call(tensor(2.0), output=tensor(3.0))}
    theirs = {"Torch.my_mish.0.forward": call(tensor(7.0, [3]), scalar(1), output=tensor(3.3, [5]))}
    return write_dump(root / "t", {**ours, **shared}), write_dump(root / "g", {**shared, **theirs})
