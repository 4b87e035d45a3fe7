"""The check's interface to PyTorch: calls from the table of the support list, tensors as numbers."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch

from msprobe.check.core.framework import Load
from msprobe.check.pytorch.call import TorchCall, as_tensor
from msprobe.check.pytorch.resolve import Callables
from msprobe.dump.tensor_files.codec import Payload
from msprobe.frameworks.pytorch.tensors import payload


class PyTorch:
    def __init__(self) -> None:
        self._callables = Callables()

    def prepare_process(self, device: str) -> None:
        torch.set_num_threads(1)

    def call(
        self, title: str, name: str, forward: dict[str, Any], backward: Optional[dict[str, Any]], load: Load
    ) -> TorchCall:
        return TorchCall(self._callables.find(title), name, forward, backward, load)

    def threads(self) -> Optional[int]:
        return int(torch.get_num_threads())

    def to_host(self, tensor: Any) -> Any:
        return tensor.cpu()

    def to_tensor(self, array: Any) -> Any:
        return as_tensor(array)

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).replace("torch.", "")

    def dtype_text(self, tensor: Any) -> str:
        return str(tensor.dtype)

    def round_like(self, tensor: Any, like: Any) -> Any:
        return tensor.to(like.dtype)

    def flat(self, tensor: Any) -> Any:
        plain = tensor.detach()
        if plain._is_zerotensor():
            plain = torch.zeros(plain.shape, dtype=plain.dtype)
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        plain = plain.resolve_conj().resolve_neg().contiguous()
        if plain.is_complex():
            plain = torch.view_as_real(plain)
        elif plain.dtype.is_floating_point and plain.dtype not in (torch.float32, torch.float64):
            plain = plain.to(torch.float32)
        flat: np.ndarray[Any, Any] = plain.reshape(-1).numpy()
        return flat

    def stored_values(self, tensor: Any) -> Any:
        if tensor.layout is torch.strided:
            return tensor
        return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()

    def is_same(self, one: Any, other: Any) -> bool:
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if torch.equal(one, other):
            return True
        plain = one.layout is torch.strided and other.layout is torch.strided
        return plain and torch.equal(_bits(one), _bits(other))  # a NaN is not equal to itself

    def payload(self, tensor: Any) -> Payload:
        return payload(tensor.detach().cpu().contiguous())


def _bits(tensor: Any) -> Any:
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
