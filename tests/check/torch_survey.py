"""Every API of the PyTorch support list once under the debugger, forward and backward, with the samples.

python tests/check/torch_survey.py CONFIG      collects the dump; prints, as JSON, which titles were called
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any, Callable, Optional

import torch
from torch_samples import Sample, samples_of

from msprobe.check.pytorch.call import flat
from msprobe.check.pytorch.resolve import Callables, ResolvedApi
from msprobe.pytorch import PrecisionDebugger

# Which arguments are differentiated: all, else the first, else the second, else none.
ATTEMPTS: tuple[Optional[frozenset[int]], ...] = (None, frozenset((0,)), frozenset((1,)), frozenset())


def fitting(title: str, found: ResolvedApi) -> Optional[list[Sample]]:
    """The first sample that this version of torch takes, once for each attempt: a call may write into it."""
    for make in samples_of(title):
        args, kwargs = make()
        try:
            answer = found.func(*args, **kwargs)
        except Exception:
            continue
        if answer is not NotImplemented:
            return [make() for _ in ATTEMPTS]
    return None


def with_gradients(value: Any, written: bool) -> Any:
    """The same arguments, differentiable; one that is written must be the result of something."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() and not value.is_complex():
            return value
        return value.requires_grad_().clone() if written else value.requires_grad_()
    if isinstance(value, (list, tuple)):
        return type(value)(with_gradients(one, written) for one in value)
    return value


def function(title: str, found: ResolvedApi) -> Callable[..., Any]:
    """An operator is looked up for each call: while collecting, it is replaced."""
    name = title.rpartition(".")[2]
    return getattr(torch.Tensor, name) if name.startswith("__") else found.func


def run(func: Callable[..., Any], sample: Sample, which: Optional[frozenset[int]], written: bool) -> None:
    args, kwargs = sample
    given = [
        with_gradients(one, written) if which is None or number in which else one for number, one in enumerate(args)
    ]
    with torch.set_grad_enabled(which != frozenset()):
        outputs = flat(func(*given, **kwargs))
    wanted = [one for one in outputs if one.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.rand(one.shape, dtype=one.dtype) for one in wanted])


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(7)
    known = Callables().known
    samples = {title: sample for title, found in known.items() if (sample := fitting(title, found)) is not None}
    debugger = PrecisionDebugger(sys.argv[1])
    debugger.start()
    for title, copies in samples.items():
        func = function(title, known[title])
        for sample, which in zip(copies, ATTEMPTS):
            try:
                run(func, sample, which, known[title].api.inplace)
            except Exception:  # it cannot be differentiated so
                continue
            break
    debugger.stop()
    debugger.step()
    print(json.dumps(list(samples)))


if __name__ == "__main__":
    main()
