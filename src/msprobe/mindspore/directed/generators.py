"""The states of MindSpore's sources of random numbers, so that two runs can be compared.

There are three: the global seed with a counter for each kind of operator, the default generator, and the seeds that an
operator got when it was made. An operator without a seed takes one from the system: its numbers never repeat.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

import mindspore

from msprobe.collect.seeding import Sample, host_states
from msprobe.frameworks.mindspore.api_table import Api

_KIND = "mindspore"
_SEEDS = (("Seed0", "Seed1"), ("seed", "seed2"), ("seed0", "seed1"))


def sample_call(api: Api, func: Any) -> Sample:
    """What the random numbers of a call follow from. The seed is None if the call has none."""
    owner = getattr(func, "args", None)
    attributes = getattr(owner[0], "init_attrs", None) if owner and api.title.startswith("Primitive.") else None
    if isinstance(attributes, dict):
        seeds = next(([attributes.get(one) for one in pair] for pair in _SEEDS if pair[0] in attributes), [None])
        return [_KIND, next((int(one) for one in seeds if one), None), -1, zlib.crc32(repr(seeds).encode())]
    if api.title.startswith("Mint"):
        return [_KIND, int(mindspore.initial_seed()), -1, _generator()]
    return [_KIND, mindspore.get_seed(), -1, _counters()]


def all_states() -> dict[str, Any]:
    """The states of the global sources of MindSpore, Python and numpy."""
    state: Sample = [_KIND, mindspore.get_seed(), -1, zlib.crc32(repr((_counters(), _generator())).encode())]
    return {_KIND: state, **host_states()}


def _generator() -> int:
    return zlib.crc32(mindspore.get_rng_state().asnumpy().tobytes())


def _counters() -> int:
    return zlib.crc32(repr(sorted(operator_counters().items(), key=repr)).encode())


def operator_counters() -> dict[Any, Any]:
    """How far the seeds of the operators have moved since mindspore.set_seed."""
    found = getattr(sys.modules.get("mindspore.common.seed"), "_KERNEL_SEED", None)
    return found if isinstance(found, dict) else {}
