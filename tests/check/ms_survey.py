"""Every API of the MindSpore support list once under the debugger, checked from statistics, and a page that says so.

python tests/check/ms_survey.py collect CONFIG     collects the dump; prints, as JSON, why the others cannot be called
python tests/check/ms_survey.py write              docs/run_ut_mindspore.md anew
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple

os.environ.setdefault("GLOG_v", "4")

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from ms_samples import Sample, samples_of

from msprobe.check.mindspore.call import as_array, flat
from msprobe.check.mindspore.resolve import Callables
from msprobe.mindspore import PrecisionDebugger

PAGE = Path(__file__).parents[2] / "docs" / "run_ut_mindspore.md"
_NO_KERNEL = re.compile(
    "unregistered|this device|kernelmod|Not implement|Not found op|ascend|Unsupported op|come here|no branch|Registry",
    re.IGNORECASE,
)
NO_KERNEL = "MindSpore's CPU has no kernel"
NO_SAMPLE = "no sample of its arguments (most are fused or distributed operators of Ascend)"


class Fit(NamedTuple):
    """A call that works, made anew each time, and the shapes of its float outputs."""

    make: Callable[[], Sample]
    shapes: list[tuple[int, ...]]


def callable_on_cpu() -> tuple[dict[str, Fit], dict[str, str]]:
    """A call for each title; for the rest the reason."""
    fit: dict[str, Fit] = {}
    reasons: dict[str, str] = {}
    for title, listed in Callables().known.items():
        if listed.api.collective:
            continue
        errors = []
        for make in samples_of(title):
            sample = make()
            try:
                outputs = flat(getattr(listed.holder, listed.name)(*sample[0], **sample[1]))
                arrays = [as_array(one) for one in outputs]  # a kernel that fails, fails when it is read
                fit[title] = Fit(make, [one.shape for one in arrays if one.dtype == np.float32])
            except Exception as error:
                errors.append(str(error))
            else:
                break
        else:
            missing = any(_NO_KERNEL.search(one) for one in errors)
            reasons[title] = NO_KERNEL if missing else NO_SAMPLE
    return fit, reasons


def _floats(listed: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """The function is looked up for each call: while collecting, it is replaced."""
    outputs = flat(getattr(listed.holder, listed.name)(*args, **kwargs))
    return tuple(one for one in outputs if isinstance(one, Tensor) and one.dtype == ms.float32)


def run(listed: Any, fit: Fit) -> None:
    """The call with its backward, where MindSpore has one."""
    args, kwargs = fit.make()
    places = [n for n, one in enumerate(args) if isinstance(one, Tensor) and one.dtype == ms.float32]

    def forward(*given: Any) -> Any:
        filled = list(args)
        for n, one in zip(places, given):
            filled[n] = one
        return _floats(listed, filled, kwargs)

    if not fit.shapes or not places:
        forward(*(args[n] for n in places))
        return
    random = np.random.RandomState(1)
    sens = tuple(Tensor(np.asarray(random.rand(*shape), np.float32)) for shape in fit.shapes)
    ops.GradOperation(get_all=True, sens_param=True)(forward)(*(args[n] for n in places), sens)


def collect(config: str) -> dict[str, str]:
    ms.runtime.launch_blocking()  # a call's failure is its own
    fit, reasons = callable_on_cpu()
    known = Callables().known
    debugger = PrecisionDebugger(config)
    debugger.start()
    for title, one in fit.items():
        try:
            run(known[title], one)
        except Exception:  # no backward
            with contextlib.suppress(Exception):
                _floats(known[title], *one.make())
    debugger.stop()
    debugger.step()
    return reasons


def survey(path: Path) -> str:
    """Collects in a process of its own, checks, and returns the page."""
    config = path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "L1", "dump_path": str(path / "dump")}))
    command = [sys.executable, __file__, "collect", str(config)]
    reasons = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    called = [
        sys.executable,
        "-m",
        "msprobe",
        "run_ut",
        "-api_info",
        str(path / "dump"),
        "-o",
        str(path),
        "--jobs",
        "2",
    ]
    subprocess.run(called, stdout=subprocess.DEVNULL, check=True)  # an error or a warning would be code 1
    (file,) = path.glob("accuracy_checking_result_*.csv")
    judged: dict[str, bool] = {}
    for call, forward, backward, message in sorted(list(csv.reader(file.open()))[1:]):  # not as workers finished
        title = call.rpartition(".")[0]
        judged[title] = judged.get(title, False) or backward == "pass"
        if forward == "pass":
            reasons.pop(title, None)
        else:
            reasons[title] = message.partition(", and that is")[0].strip(" .")
    return page(judged, reasons)


def page(judged: dict[str, bool], reasons: dict[str, str]) -> str:
    """`judged`: each title that ran, and whether its backward was judged too."""
    passed = [title for title in judged if title not in reasons]
    backward = sum(judged[title] for title in passed)
    by_reason: dict[str, list[str]] = {}
    for title, reason in sorted(reasons.items()):
        by_reason.setdefault(reason, []).append(title)
    head = [
        "# run_ut on MindSpore: which APIs\n",
        "Written by `python tests/check/ms_survey.py write`; a test compares it with the support list. "
        f"MindSpore {ms.__version__}, CPU, inputs generated from statistics.\n",
        f"Of the {len(judged.keys() | reasons.keys())} APIs of the support list that are not collectives, "
        f"{len(passed)} run and pass, {backward} of them with their backward. The others:\n",
        "| why not | | APIs |",
        "|---|---|---|",
    ]
    rows = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return "\n".join([*head, *(f"| {why} | {len(them)} | {' '.join(them)} |" for why, them in rows)]) + "\n"


def main() -> int:
    if sys.argv[1] == "collect":
        print(json.dumps(collect(sys.argv[2])))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(survey(Path(scratch)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
