"""A flipped bit from two checksums, and the number of draws from the state of a generator."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from msprobe.pytorch.directed.generators import sample
from msprobe.rerun.bit_flip import FlippedBit, find_flipped_bit
from msprobe.rerun.draws import count_draws


@given(st.binary(min_size=4, max_size=4096).filter(lambda data: len(data) % 4 == 0), st.data())
def test_one_flipped_bit_is_found(data: bytes, draw: st.DataObject) -> None:
    place, bit = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 7))
    other = bytearray(data)
    other[place] ^= 1 << bit
    found = find_flipped_bit(crc32(data), crc32(other), len(data), 4)
    assert found == FlippedBit(place // 4, 8 * (place % 4) + bit)


def test_other_changes_are_no_flipped_bit() -> None:
    data = bytearray(np.arange(1000, dtype=np.float32).tobytes())
    for count in (2, 3, 50):
        other = bytearray(data)
        for place in range(count):
            other[17 * place] ^= 1 << (place % 8)
        assert find_flipped_bit(crc32(data), crc32(other), len(data), 4) is None
    assert find_flipped_bit(crc32(data), crc32(data), len(data), 4) is None


def test_a_large_tensor_is_quick_to_search() -> None:
    data = bytearray(1 << 22)
    other = bytearray(data)
    other[3_000_000] ^= 16
    assert find_flipped_bit(crc32(data), crc32(other), len(data), 2) == FlippedBit(1_500_000, 4)


@pytest.mark.parametrize("numbers", [0, 1, 623, 624, 625, 5000])
def test_draws_of_torch_are_counted(numbers: int) -> None:
    generator = torch.Generator().manual_seed(7)
    torch.rand(numbers, generator=generator)
    assert count_draws(*sample(generator)[1:]) == numbers
