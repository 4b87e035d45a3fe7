"""overflow_check on PyTorch: inspects tensors, and holds them until their gradients come."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional
from weakref import ref

import torch

from msprobe.frameworks.pytorch.tensors import CODES
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.pytorch.tensors.tensor_text import EXCHANGE, TensorTexts
from msprobe.stats import STATS, measure
from msprobe.stats.dtype_ranges import Ranges
from msprobe.stats.finiteness import FINITE, INFINITE, NAN, classify, classify_scan
from msprobe.stats.own_infinities import Signs, signs_of
from msprobe.stats.scan import FORMATS, look
from msprobe.tasks.overflow_check.open_calls import Holder

PLAIN = TensorTexts.tensor_types
# Types that hold no tensor.
SIMPLE = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})
# Dtypes that can be scanned in place: their code, and the number of values per element.
_SCANNED = {getattr(torch, name): (code, 1) for name, code in FORMATS.items()}
_SCANNED.update({torch.complex64: (FORMATS["float32"], 2), torch.complex128: (FORMATS["float64"], 2)})
_look_at_once = (lambda tensor: None) if EXCHANGE is None else partial(look, EXCHANGE)


class TorchTensorInspector:
    """Inspects a tensor in one pass over its bits, without a copy where it is in host memory."""

    budget = 0  # autograd keeps what a gradient depends on

    def __init__(self, texts: TensorTexts) -> None:
        self._texts = texts

    def arguments(self, args: Any, kwargs: Any) -> list[Any]:
        found: list[Any] = []
        for value in args:
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif type(value) not in SIMPLE:
                tensors_in(value, found)
        return tensors_in(kwargs, found) if kwargs else found

    def look(self, tensor: Any, ranges: Optional[Ranges] = None, title: str = "") -> int:
        if type(tensor) in PLAIN:
            seen = _look_at_once(tensor)
            if seen == 0:
                return FINITE
            if seen is not None:
                return classify_scan(*seen, tensor.dtype, ranges, title)
        return self._look(tensor, ranges, title)

    def _look(self, tensor: Any, ranges: Optional[Ranges], title: str) -> int:
        """For anything except a plain tensor, or if this version of torch cannot describe one in a single call."""
        dtype = tensor.dtype
        if not (dtype.is_floating_point or dtype.is_complex):
            return FINITE
        found = _in_place(tensor)
        if found is None:
            found, _, _ = nonplain_tensors.as_plain(tensor)
            if found is None:  # there are no numbers
                return FINITE
        scanned = _SCANNED.get(found.dtype)
        if scanned is not None and found.is_contiguous():
            return classify(found.data_ptr(), scanned[0], found.numel() * scanned[1], dtype, ranges, title)
        code = CODES.get(found.dtype)
        if code is None:
            return FINITE
        with torch.no_grad(), nonplain_tensors.without_modes():
            plain = found.detach().resolve_conj().resolve_neg()
        stats = measure(plain.data_ptr(), code, plain.shape, plain.stride(), STATS)
        return NAN if stats.nan else INFINITE if stats.posinf or stats.neginf else FINITE

    def infinities(self, tensor: Any) -> Optional[Signs]:
        found, _, _ = nonplain_tensors.as_plain(tensor)
        if found is None or not (found.dtype.is_floating_point or found.dtype.is_complex):
            return None
        with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
            if found.is_complex():
                wide = found.to(torch.complex128)
            else:
                wide = found.double() if found.dtype is torch.float64 else found.float()
            return signs_of(wide.numpy())

    def version(self, tensor: Any) -> int:
        try:
            return int(tensor._version)
        except RuntimeError:  # an inference tensor has no version
            return 0

    def remembers(self, tensor: Any) -> bool:
        try:
            return self._texts.is_ours_to_remember(tensor)
        except RuntimeError:  # a sparse tensor, a wrapper: it has no storage
            return False

    def versions(self, tensors: list[Any]) -> list[tuple[Any, int]]:
        try:
            return [(tensor, tensor._version) for tensor in tensors]
        except RuntimeError:
            return [(tensor, self.version(tensor)) for tensor in tensors]

    def copy(self, tensor: Any) -> Any:
        if torch._C._len_torch_dispatch_stack():
            with nonplain_tensors.without_modes():
                return tensor.detach().clone()
        return tensor.detach().clone()

    def hold(self, tensor: Any) -> Optional[Holder]:
        if not isinstance(tensor, torch.Tensor):
            return None
        return _Weak(tensor)

    def size(self, tensor: Any) -> int:
        return int(tensor.numel()) * int(tensor.element_size())

    def fresh(self) -> None:
        self._texts.forget()

    def circumstances(self) -> str:
        if not torch._C._is_any_autocast_enabled():
            return ""
        kinds = [kind for kind in ("cpu", "cuda", "npu") if _autocasts(kind)]
        members = ", ".join(f'"{kind}": "{torch.get_autocast_dtype(kind)}"' for kind in kinds)
        return f'"autocast": {{{members}}}' if kinds else ""


def _in_place(tensor: Any) -> Any:
    """The tensor, if it can be read in place."""
    try:
        plain = type(tensor) in PLAIN and tensor.is_cpu and tensor.layout is torch.strided
        return (
            tensor
            if plain and nonplain_tensors.has_memory(tensor) and (tensor.data_ptr() or not tensor.numel())
            else None
        )
    except RuntimeError:  # a functorch wrapper
        return None


def restored(data: bytes, like: Any) -> Any:
    """The tensor that `like` was when its bytes were `data`."""
    with torch.no_grad(), nonplain_tensors.without_modes():
        if not data:
            return torch.empty_like(like)
        was = torch.frombuffer(bytearray(data), dtype=like.dtype).as_strided(like.shape, like.stride())
        return was.neg() if like.is_neg() else was


def _autocasts(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except RuntimeError:  # no such device in this build
        return False


class _Weak(Holder):
    """A tensor that autograd may keep alive; ones replace it once it is gone or was changed.

    Autograd keeps what a gradient depends on, or the output instead: the ones rarely matter.
    """

    __slots__ = ("dtype", "requires_grad", "shape", "tensor", "version")

    def __init__(self, tensor: Any) -> None:
        self.tensor = ref(tensor)
        try:
            self.version = tensor._version
        except RuntimeError:  # an inference tensor has none
            self.version = None
        self.shape, self.dtype, self.requires_grad = tensor.shape, tensor.dtype, tensor.requires_grad

    def restored(self) -> tuple[Any, bool]:
        tensor = self.tensor()
        if tensor is not None and self.version is not None and tensor._version == self.version:
            return tensor, True
        ones = torch.ones(self.shape, dtype=self.dtype)
        return (ones.requires_grad_() if self.requires_grad else ones), False
