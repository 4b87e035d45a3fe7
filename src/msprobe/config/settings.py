"""The settings that the rest of msprobe reads: typed, frozen, complete. Fields have the names of the keys.

Defaults are already filled in. None means that the key has no default and was not given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Union

from msprobe.config.kinds import Formats


@dataclass(frozen=True)
class StatisticsSettings:
    """`summary_mode` is a tuple of statistic names only in MindSpore graph mode."""

    scope: tuple[str, ...]
    list: tuple[str, ...]
    tensor_list: tuple[str, ...]
    data_mode: tuple[str, ...]
    summary_mode: str | tuple[str, ...]


@dataclass(frozen=True)
class TensorSettings:
    """The tensor task, and the sending side of the online check when `online_run_ut` is on."""

    scope: tuple[str, ...]
    list: tuple[str, ...]
    data_mode: tuple[str, ...]
    summary_mode: str | tuple[str, ...]
    backward_input: tuple[Path, ...]
    file_format: str
    online_run_ut: bool
    nfs_path: Path | None
    host: str | None
    port: int | None
    secret_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None


@dataclass(frozen=True)
class StructureSettings:
    scope: tuple[str, ...]
    list: tuple[str, ...]


@dataclass(frozen=True)
class OverflowSettings:
    """`overflow_nums` -1 means: never stop training."""

    overflow_nums: int
    check_mode: str


@dataclass(frozen=True)
class FreeBenchmarkSettings:
    """`fuzz_device` "npu" means the device of the model, also if that is not an NPU."""

    scope: tuple[str, ...]
    list: tuple[str, ...]
    fuzz_device: str
    pert_mode: str
    handler_type: str
    fuzz_level: str
    fuzz_stage: str
    if_preheat: bool
    preheat_step: int
    max_sample: int


@dataclass(frozen=True)
class RunUtSettings:
    """The accuracy check, and the receiving side of the online check when `is_online` is on."""

    white_list: tuple[str, ...]
    black_list: tuple[str, ...]
    error_data_path: Path
    is_online: bool
    nfs_path: Path | None
    host: str
    port: int | None
    rank_list: frozenset[int]
    secret_file: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None


Section = Union[
    StatisticsSettings,
    TensorSettings,
    StructureSettings,
    OverflowSettings,
    FreeBenchmarkSettings,
    RunUtSettings,
]


@dataclass(frozen=True)
class Settings:
    """The settings of one run. `rank` and `step` None mean all; `seed` and `is_deterministic` None mean: no change.

    `warnings` are for the user: keys that have no effect here, and deprecations. Each is logged once.
    """

    framework: str
    task: str
    dump_path: Path
    rank: frozenset[int] | None
    step: frozenset[int] | None
    level: str
    seed: int | None
    is_deterministic: bool | None
    enable_dataloader: bool
    acl_config: Path | None
    async_dump: bool
    extra_info: bool
    precision: str | Formats
    compile: str
    section: Section
    warnings: tuple[str, ...]

    @property
    def formats(self) -> tuple[str, ...]:
        """The low-precision formats whose damage is recorded with each factor of a product."""
        return self.precision.names if isinstance(self.precision, Formats) else ()


SECTION_TYPES: dict[str, type[Section]] = {
    "statistics": StatisticsSettings,
    "tensor": TensorSettings,
    "structure": StructureSettings,
    "overflow_check": OverflowSettings,
    "free_benchmark": FreeBenchmarkSettings,
    "run_ut": RunUtSettings,
}
