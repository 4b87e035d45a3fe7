"""The check's interface to MindSpore. Its tensors are numpy arrays here, bfloat16 in the type of ml_dtypes.

MindSpore may compute, and fail, later than the call. So each result is copied to numpy memory inside the call: an error
then belongs to this call, and measuring needs no framework.
"""

from __future__ import annotations

from typing import Any, Optional

import mindspore
import numpy as np
from mindspore import runtime

from msprobe.check.core.framework import Call, Load
from msprobe.check.core.generate import NotMade
from msprobe.check.mindspore.call import MindSporeCall
from msprobe.check.mindspore.cpu_process import CallWithGoldenProcess, CpuProcess
from msprobe.check.mindspore.golden import KernelPrecision
from msprobe.check.mindspore.resolve import Callables
from msprobe.dump.record_keys import ATTRIBUTES
from msprobe.dump.tensor_files.codec import Payload
from msprobe.stats import dtypes

Array = np.ndarray[Any, Any]


class MindSpore:
    def __init__(self) -> None:
        self._callables = Callables()
        self._precision = KernelPrecision()
        self._cpu: Optional[CpuProcess] = None

    def prepare_process(self, device: str) -> None:
        kind, _, number = device.partition(":")
        if kind.lower() != "cpu":
            names = {"ascend": "Ascend", "npu": "Ascend", "gpu": "GPU"}
            mindspore.set_device(names.get(kind.lower(), kind), int(number) if number else None)
            self.use_golden_process()
        runtime.dispatch_threads_num(1)
        runtime.launch_blocking()

    def use_golden_process(self) -> None:
        """Runs the golden side in another process, on the CPU, from now on."""
        self._cpu = CpuProcess()

    def call(
        self, title: str, name: str, forward: dict[str, Any], backward: Optional[dict[str, Any]], load: Load
    ) -> Call:
        found = self._callables.find(title, forward.get(ATTRIBUTES))
        call = MindSporeCall(found, title, name, forward, backward, load, self._precision)
        if self._cpu is None:
            return call
        records = {"title": title, "name": name, "forward": forward, "backward": backward}
        return CallWithGoldenProcess(call, self._cpu, records)

    def threads(self) -> Optional[int]:
        return None

    def to_host(self, tensor: Array) -> Array:
        return tensor

    def to_tensor(self, array: Array) -> Array:
        return array

    def dtype(self, tensor: Array) -> str:
        return _row(tensor).name

    def dtype_text(self, tensor: Array) -> str:
        row = _row(tensor)
        return row.mindspore or row.name

    def round_like(self, tensor: Array, like: Array) -> Array:
        with np.errstate(all="ignore"):
            made: Array = tensor.astype(like.dtype, copy=False)
        return made

    def flat(self, tensor: Array) -> Array:
        row = _row(tensor)
        plain = np.ascontiguousarray(tensor).reshape(-1)
        if row.kind == dtypes.COMPLEX:
            made: Array = plain.view(np.float32 if row.name == "complex64" else np.float64)
            return made
        narrow = row.kind == dtypes.FLOAT and row.name not in ("float32", "float64")
        return plain.astype(np.float32) if narrow else plain

    def stored_values(self, tensor: Array) -> Array:
        return tensor

    def is_same(self, one: Array, other: Array) -> bool:
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()

    def payload(self, tensor: Array) -> Payload:
        row = _row(tensor)
        return Payload(row.name, tensor.shape, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8), "npy")


def _row(tensor: Array) -> dtypes.Dtype:
    row = dtypes.of_numpy(tensor.dtype)
    if row is None:
        raise NotMade(f"tensors of type {tensor.dtype} are not measured")
    return row
