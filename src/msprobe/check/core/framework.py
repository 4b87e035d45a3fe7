"""What the check needs from a framework: a call built from records, and its tensors as numbers.

`check/pytorch` and `check/mindspore` implement it; a worker loads the one that its dump names. The rest of the check
imports neither torch nor mindspore.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Protocol

from msprobe.dump.tensor_files.codec import Payload
from msprobe.frameworks.versions import MINDSPORE, PYTORCH, refuse_old

FRAMEWORKS = ("pytorch", "mindspore")
Load = Callable[[dict[str, Any]], Any]


FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError, KeyError)
"""What an API may raise for arguments that it does not accept."""


class NotCallable(Exception):
    """The title does not name a function that may be called. The message is a reason for the user."""


class Results(NamedTuple):
    """The results of one run: a flat list of tensors.

    `gradients` has one entry per tensor argument, None if there is no gradient. `no_gradients` is the reason why a
    wanted backward could not run. On the golden side, `made` says in words how the result was computed, if it is not
    "the same API with wider floats". `weak` names the directions in which the golden side is not better than the CPU in
    the recorded dtypes, so it cannot judge the CPU.
    """

    outputs: list[Any]
    gradients: list[Any]
    random: bool
    no_gradients: str = ""
    made: str = ""
    weak: tuple[str, ...] = ()


class Call(Protocol):
    """A call from a record, with its tensors in memory."""

    @property
    def api(self) -> str:
        """The name of the API as in the table of standards: `conv2d`."""

    @property
    def tensors(self) -> list[Any]: ...

    @property
    def first_only(self) -> bool:
        """Whether only its first result can be compared: the others are for its own backward and may have any form."""

    @property
    def incoming(self) -> list[Any]:
        """The gradients of the outputs, None if there is none. If the list is empty, the backward is not run."""

    def run(self, device: str) -> Results:
        """Runs on the device under test, in the recorded dtypes."""

    def golden(self) -> Results: ...

    def moved(self, number: int, epsilon: float, within: bool) -> Results:
        """Runs the golden side again. Each float of the inputs is changed at random by at most `epsilon` of its value.

        With `within`, values stay between the smallest and largest value of their argument, as a probability needs.
        """


class Framework(Protocol):
    def prepare_process(self, device: str) -> None:
        """Prepares a process that only runs the check: one thread, and a failure of one call does not affect the next.

        `device` is the device under test, for frameworks with one device per process.
        """

    def call(
        self, title: str, name: str, forward: dict[str, Any], backward: Optional[dict[str, Any]], load: Load
    ) -> Call:
        """Raises NotCallable; or NotMade if the records do not have everything that the call needs."""

    def threads(self) -> Optional[int]:
        """How many threads an operator may use here; None if it does not depend on that."""

    def to_host(self, tensor: Any) -> Any: ...

    def to_tensor(self, array: Any) -> Any:
        """The array of a tensor file as a tensor."""

    def dtype(self, tensor: Any) -> str:
        """The name in the table of dtypes: `float32`."""

    def dtype_text(self, tensor: Any) -> str:
        """The name of the dtype in the framework, for the details file."""

    def round_like(self, tensor: Any, like: Any) -> Any:
        """The tensor, rounded to the dtype of another tensor."""

    def flat(self, tensor: Any) -> Any:
        """The elements for measuring: narrow floats as float32, complex numbers as pairs."""

    def stored_values(self, tensor: Any) -> Any:
        """The part that a tensor file has: the stored values of a sparse tensor, otherwise the tensor itself."""

    def is_same(self, one: Any, other: Any) -> bool:
        """Whether two tensors have the same bits, dtype and shape."""

    def payload(self, tensor: Any) -> Payload: ...


def load(name: str) -> Framework:
    """Imports the framework. The caller handles what the import raises."""
    if name == "pytorch":
        import torch

        refuse_old(PYTORCH, torch.__version__)
        from msprobe.check.pytorch.framework import PyTorch

        return PyTorch()
    if name == "mindspore":
        import mindspore

        refuse_old(MINDSPORE, mindspore.__version__)
        from msprobe.check.mindspore.framework import MindSpore

        return MindSpore()
    raise ValueError(f"{name[:40]!r} is not a framework that run_ut checks: {', '.join(FRAMEWORKS)}")
