"""The table of all keys. Reading, messages and the test of docs/config.md use it.

A default is written as in the file; None means that the key has no default. `modes`, `levels`, `without` and `switch`
say where a key acts. Elsewhere msprobe ignores the key and warns.
"""

from __future__ import annotations

from dataclasses import dataclass

from msprobe.config.kinds import (
    Choice,
    FilePath,
    FilePaths,
    Flag,
    Integer,
    Kind,
    Names,
    Numbers,
    Precision,
    Summary,
    Text,
    Words,
)

PYTORCH = "PyTorch"
DYNAMIC = "MindSpore dynamic graph"
GRAPH = "MindSpore graph mode"
MODES = (PYTORCH, DYNAMIC, GRAPH)
MINDSPORE = (DYNAMIC, GRAPH)
EAGER = (PYTORCH, DYNAMIC)

LEVELS = ("L0", "L1", "L2", "mix", "debug")
COLLECTING = ("L0", "L1", "L2", "mix")


def name_modes(modes: tuple[str, ...]) -> str:
    """Several modes as text for messages."""
    return "MindSpore" if modes == MINDSPORE else " and ".join(modes)


@dataclass(frozen=True)
class Key:
    """One key: how it is read, its default, and where it acts."""

    name: str
    kind: Kind
    default: object = None
    modes: tuple[str, ...] = MODES
    levels: tuple[str, ...] = LEVELS
    without: tuple[tuple[str, str], ...] = ()  # (mode, level)
    switch: str = ""

    def acts(self, mode: str, level: str) -> bool:
        return mode in self.modes and level in self.levels and (mode, level) not in self.without

    def where(self) -> str:
        """Where this key acts, as text for messages."""
        places = name_modes(self.modes) if self.modes != MODES else ""
        levels = f"at level {', '.join(self.levels)}" if self.levels != LEVELS else ""
        found = " ".join(part for part in (places and f"on {places}", levels) if part)
        return ", but not ".join([found, *(f"on {mode} at {level}" for mode, level in self.without)])


# Which levels each task runs at. A task that is absent from a mode does not run there.
MATRIX: dict[str, dict[str, tuple[str, ...]]] = {
    mode: {
        "statistics": LEVELS,
        "tensor": LEVELS,
        "structure": COLLECTING,
        "overflow_check": ("L0", "L1", "mix"),
        "free_benchmark": ("L1",),
        "run_ut": LEVELS,
    }
    for mode in EAGER
}
MATRIX[GRAPH] = {
    "statistics": ("L0", "L2"),
    "tensor": ("L0", "L2"),
    "structure": ("L0", "L2"),
    "overflow_check": ("L2",),
}
TASKS = tuple(MATRIX[PYTORCH])
# Tasks of mindstudio-probe, with what to use here. As a task each is an error: msprobe would collect nothing.
FOREIGN_TASKS = (
    ("acc_check", "dump with task statistics or tensor, then use msprobe run_ut"),
    ("diff_check", "use msprobe compare after the run"),
    ("exception_dump", "use msprobe graph dump with op_debug_mode 4"),
    ("grad_probe", "gradients are collected at levels L0 and mix; Monitor watches them during a run"),
    ("nan_check", "use task overflow_check"),
)

DATA_MODES = ("all", "forward", "backward", "input", "output")
SUMMARY_MODES = ("statistics", "md5", "xor")
STATISTICS = (
    "max",
    "min",
    "mean",
    "avg",
    "l2norm",
    "md5",
    "count",
    "negative zero count",
    "positive zero count",
    "zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
)

_FP8 = tuple(
    f"fp8-{element}{block}{scale}"
    for element in ("e4m3", "e5m2")
    for block in ("", "-row", "-1x128", "-128x128")
    for scale in ("", "-pow2")
)
_MX = tuple(f"{name}{mode}" for name in ("mxfp8", "mxfp4") for mode in ("", "-rceil", "-ceil", "-even"))
FORMATS = ("fp16", "bf16", *_FP8, *_MX, "nvfp4", "nvfp4-1x16")
"""The names of msprobe.stats.formats, which this package does not import."""

COMMON = (
    Key("task", Choice(TASKS, FOREIGN_TASKS), "statistics"),
    Key("dump_path", FilePath(), "./dump_path"),
    Key("rank", Numbers()),
    Key("step", Numbers()),
    Key("level", Choice(LEVELS), "L1"),
    Key("seed", Integer(0, 2**32 - 1), modes=(PYTORCH,)),
    Key("is_deterministic", Flag(), modes=(PYTORCH,)),
    Key("enable_dataloader", Flag(), False, modes=(PYTORCH,)),
    Key("acl_config", FilePath(), modes=(PYTORCH,), levels=("L2",)),
    Key("async_dump", Flag(), False),
    Key("extra_info", Flag(), True),
    Key("precision", Precision(("high", "low"), FORMATS), "high"),
    Key("compile", Choice(("closed", "open", "eager")), "closed", modes=(PYTORCH,), levels=COLLECTING),
)

_GRAPH_KERNELS = ((GRAPH, "L2"),)  # there MindSpore's Dump selects, which has no ranges of calls

_LIST = Key("list", Names(), [], levels=COLLECTING)
_SCOPE = Key("scope", Names(ends=True), [], levels=COLLECTING, without=_GRAPH_KERNELS)
_DATA_MODE = Key("data_mode", Words(DATA_MODES, exclusive="all"), ["all"], levels=COLLECTING)
_SUMMARY_MODE = Key("summary_mode", Summary(SUMMARY_MODES, STATISTICS), "statistics")


def _online(switch: str, host: str | None) -> tuple[Key, ...]:
    return (
        Key(switch, Flag(), False),
        Key("nfs_path", FilePath(), switch=switch),
        Key("host", Text("an address or a host name"), host, switch=switch),
        Key("port", Integer(1, 65535), switch=switch),
        Key("secret_file", FilePath(), switch=switch),
        Key("tls_cert", FilePath(), switch=switch),
        Key("tls_key", FilePath(), switch=switch),
        Key("tls_ca", FilePath(), switch=switch),
    )


SECTIONS: dict[str, tuple[Key, ...]] = {
    "statistics": (
        _SCOPE,
        _LIST,
        Key("tensor_list", Names(), [], levels=COLLECTING, without=_GRAPH_KERNELS),
        _DATA_MODE,
        _SUMMARY_MODE,
    ),
    "tensor": (
        _SCOPE,
        _LIST,
        _DATA_MODE,
        _SUMMARY_MODE,
        Key("backward_input", FilePaths(), [], modes=(PYTORCH,), levels=("L2",)),
        Key("file_format", Choice(("npy", "bin")), "npy", modes=MINDSPORE, levels=("L2",)),
        *_online("online_run_ut", None),
    ),
    "structure": (_SCOPE, Key("list", Names(), [], levels=COLLECTING, without=_GRAPH_KERNELS)),
    "overflow_check": (
        Key("overflow_nums", Integer(1, also=-1), 1, modes=EAGER),
        Key("check_mode", Choice(("aicore", "atomic", "all")), "all", modes=(GRAPH,)),
    ),
    "free_benchmark": (
        Key("scope", Names(), []),
        Key("list", Names(), []),
        Key("fuzz_device", Choice(("npu", "cpu")), "npu"),
        Key(
            "pert_mode",
            Choice(("improve_precision", "add_noise", "bit_noise", "no_change", "change_value", "to_cpu")),
            "improve_precision",
        ),
        Key("handler_type", Choice(("check", "fix")), "check"),
        Key("fuzz_level", Choice(("L1",)), "L1"),
        Key("fuzz_stage", Choice(("forward", "backward")), "forward"),
        Key("if_preheat", Flag(words_too=True), False),
        Key("preheat_step", Integer(1), 15, switch="if_preheat"),
        Key("max_sample", Integer(1), 20, switch="if_preheat"),
    ),
    "run_ut": (
        Key("white_list", Names(), []),
        Key("black_list", Names(), []),
        Key("error_data_path", FilePath(), "./"),
        *_online("is_online", "127.0.0.1"),
        Key("rank_list", Numbers(), [0], switch="is_online"),
    ),
}

# Keys of mindstudio-probe that msprobe does not use. A file with them loads; a warning gives the reason.
# "" is the top level of the file, "*" is any section.
FOREIGN: dict[str, dict[str, str]] = {
    "": {
        "risk_level": "APIs are chosen in support_wrap_ops.yaml",
        "dump_enable": "collection is switched with start() and stop()",
        "load_config": "the file is read once, when the debugger is created",
        "custom_op_namespaces": "operators outside aten are collected from every namespace",
        "grad_probe": "gradients are collected at levels L0 and mix",
        "acc_check": "the section is called run_ut in msprobe",
        "nan_check": "the section is called overflow_check in msprobe",
        "diff_check": "use msprobe compare after the run",
        "exception_dump": "use msprobe graph dump with op_debug_mode 4",
        "load": "msprobe prove gives calls the results of a golden run and keeps the gradients intact",
    },
    "*": {
        "bench_path": "use msprobe compare after the run",
        "slice": "records have all elements; slice the saved tensors",
        "slice_info": "tensors are saved complete",
        "request_id": "records have the rows of all requests; scheduled_tokens of start() gives their order",
        "diff_nums": "use msprobe compare after the run",
        "is_regex_valid": 'write a regular expression as "name-regex(...)" in list',
        "device": "statistics are computed on the device of the tensor",
        "stat_cal_mode": "statistics are computed on the device of the tensor",
        "device_stat_precision_mode": "use the key precision",
        "precision": "use the key precision at the top level",
        "tls_path": "use tls_cert, tls_key and tls_ca",
    },
}
