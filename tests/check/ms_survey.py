"""Every API of the MindSpore support list once under the debugger, and which of them this installation cannot call.

python tests/check/ms_survey.py CONFIG      collects the dump; prints, as JSON, why the others could not be called
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

os.environ.setdefault("GLOG_v", "4")

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from ms_samples import Sample, samples_of

from msprobe.check.mindspore_call import flat
from msprobe.check.mindspore_resolve import Callables
from msprobe.mindspore import PrecisionDebugger

_NO_KERNEL = re.compile("unregistered|on this device|kernelmod|Not implement|Not found op|ascend", re.IGNORECASE)
NO_KERNEL = "no kernel on MindSpore's CPU"


def callable_on_cpu() -> tuple[dict[str, Sample], dict[str, str]]:
    """A sample for each title; for the rest the reason."""
    fit: dict[str, Sample] = {}
    reasons: dict[str, str] = {}
    for title, listed in Callables().known.items():
        if listed.api.collective:
            continue
        errors = []
        for make in samples_of(title):
            sample = make()
            try:
                for one in flat(_function(listed)(*sample[0], **sample[1])):
                    if isinstance(one, Tensor):
                        one.asnumpy()
            except Exception as error:
                errors.append(str(error))
            else:
                fit[title] = sample
                break
        else:
            missing = any(_NO_KERNEL.search(one) for one in errors)
            reasons[title] = NO_KERNEL if missing else "no sample of its arguments is known"
    return fit, reasons


def _function(listed: Any) -> Any:
    """Looked up for each call: while collecting, something else stands there."""
    return getattr(listed.holder, listed.name)


def run(listed: Any, sample: Sample) -> None:
    """The call with its backward, where MindSpore has one."""
    args, kwargs = sample
    places = [n for n, one in enumerate(args) if isinstance(one, Tensor) and one.dtype == ms.float32]

    def forward(*given: Any) -> Any:
        filled = list(args)
        for n, one in zip(places, given):
            filled[n] = one
        outputs = flat(_function(listed)(*filled, **kwargs))
        return tuple(one for one in outputs if isinstance(one, Tensor) and one.dtype == ms.float32)

    shapes = [one.shape for one in forward(*(args[n] for n in places))]
    if shapes and places:
        sens = tuple(Tensor(np.random.RandomState(1).rand(*shape).astype(np.float32)) for shape in shapes)
        ops.GradOperation(get_all=True, sens_param=True)(forward)(*(args[n] for n in places), sens)


def main() -> int:
    fit, reasons = callable_on_cpu()
    known = Callables().known
    debugger = PrecisionDebugger(sys.argv[1])
    debugger.start()
    for title, sample in fit.items():
        try:
            run(known[title], sample)
        except Exception as error:
            print(title, type(error).__name__, str(error).strip().partition("\n")[0][:200], file=sys.stderr)
    debugger.stop()
    debugger.step()
    print(json.dumps(reasons))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
