"""What the user can do, in the words of each framework."""

from __future__ import annotations

from typing import NamedTuple

from msprobe.messages import Message


class Remedy(NamedTuple):
    """One sentence for each kind of cause."""

    name: str
    seed: Message
    numpy: Message
    own_generator: Message
    deterministic: Message
    untried: Message
    choice: Message
    threads: Message


_TORCH = Remedy(
    name="torch",
    seed=Message("remedy.torch.seed"),
    numpy=Message("remedy.torch.numpy"),
    own_generator=Message("remedy.torch.own_generator"),
    deterministic=Message("remedy.torch.deterministic"),
    untried=Message("remedy.torch.untried"),
    choice=Message("remedy.torch.choice"),
    threads=Message("remedy.torch.threads"),
)
_MINDSPORE = Remedy(
    name="MindSpore",
    seed=Message("remedy.mindspore.seed"),
    numpy=Message("remedy.mindspore.numpy"),
    own_generator=Message("remedy.mindspore.own_generator"),
    deterministic=Message("remedy.mindspore.deterministic"),
    untried=Message("remedy.mindspore.untried"),
    choice=Message("remedy.mindspore.choice"),
    threads=Message("remedy.mindspore.threads"),
)


def remedy_for(framework: object) -> Remedy:
    return _MINDSPORE if framework == "mindspore" else _TORCH
