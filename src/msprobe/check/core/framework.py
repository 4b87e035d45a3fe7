"""What the check needs of a framework, and nothing else: a call made from records, and its tensors as numbers.

A folder for each framework (`check/pytorch`, `check/mindspore`) implements it; a worker loads the one that its dump
names. The rest of the check knows neither torch nor mindspore.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Protocol

from msprobe.dump.tensor_files.codec import Payload

FRAMEWORKS = ("pytorch", "mindspore")
Load = Callable[[dict[str, Any]], Any]


FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError, KeyError)
"""What the call of an API may raise, on arguments that it does not take."""


class NotCallable(Exception):
    """The title names nothing that may be called; the message is a reason for the user."""


class Results(NamedTuple):
    """Tensors only, flat. `gradients` has one entry a tensor argument, None where there is none.

    `no_gradients` is the reason where backward was wanted and could not run.
    Of a golden side: `made` says in words how it was made where that is not "the same API one step wider"; `weak` names
    the directions in which it is no better than the CPU in the recorded dtypes, which cannot be held against it.
    """

    outputs: list[Any]
    gradients: list[Any]
    random: bool
    no_gradients: str = ""
    made: str = ""
    weak: tuple[str, ...] = ()


class Call(Protocol):
    """What a record says about a call, with its tensors in memory."""

    @property
    def api(self) -> str:
        """The name that the standards know: `conv2d`."""

    @property
    def tensors(self) -> list[Any]: ...

    @property
    def first_only(self) -> bool:
        """Whether only its first result can be compared: the others serve its own backward, in any form."""

    @property
    def incoming(self) -> list[Any]:
        """The gradients of the outputs, None where there is none; empty: backward is not run."""

    def run(self, device: str) -> Results:
        """On the device under test, in the recorded dtypes."""

    def golden(self) -> Results: ...

    def moved(self, number: int, epsilon: float, within: bool) -> Results:
        """The golden side again, with every float of the inputs moved at random by at most `epsilon` of its value.

        `within`: an argument's least and largest value stay bounds, as a probability needs.
        """


class Framework(Protocol):
    def own_process(self, device: str) -> None:
        """This process is the check's own: one thread, and a call's failure is its own and not the next one's.

        `device` is the one under test, where the framework has but one a process.
        """

    def call(
        self, title: str, name: str, forward: dict[str, Any], backward: Optional[dict[str, Any]], load: Load
    ) -> Call:
        """Raises NotCallable, or NotMade where the records do not hold all that it takes."""

    def on_host(self, tensor: Any) -> Any: ...

    def loaded(self, array: Any) -> Any:
        """A tensor file's array as a tensor."""

    def dtype(self, tensor: Any) -> str:
        """`float32`, as the table of dtypes has it."""

    def shown_dtype(self, tensor: Any) -> str:
        """The same in the framework's own spelling, for the details file."""

    def rounded(self, tensor: Any, like: Any) -> Any:
        """The tensor in the dtype of another one."""

    def flat(self, tensor: Any) -> Any:
        """Its elements for measuring: narrow floats as float32, complex numbers as pairs."""

    def stored(self, tensor: Any) -> Any:
        """What a tensor file has of it: of a sparse tensor the stored values, else the tensor itself."""

    def same(self, one: Any, other: Any) -> bool:
        """Bit by bit, dtype and shape included."""

    def payload(self, tensor: Any) -> Payload: ...


def load(name: str) -> Framework:
    """Imports the framework. Whatever its import raises is the caller's."""
    if name == "pytorch":
        from msprobe.check.pytorch.framework import PyTorch

        return PyTorch()
    if name == "mindspore":
        from msprobe.check.mindspore.framework import MindSpore

        return MindSpore()
    raise ValueError(f"{name[:40]!r} is not a framework that run_ut checks: {', '.join(FRAMEWORKS)}")
