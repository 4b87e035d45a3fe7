"""Shared modules (gloo) are importable, and `make test-fast` knows its tests."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

gc.disable()  # until everything is collected and imported: none of that is garbage
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from framework_versions import missing  # noqa: E402 beside this file
from json_schemas import check_messages, check_schema  # noqa: E402

# Every process that a test starts reads children/sitecustomize.py.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / "children"), os.environ.get("PYTHONPATH"))))

# Unit tests: quick, and they start no training process.
UNITS = (
    "analyze",
    "collect",
    "compare/test_align.py",
    "compare/test_mapping.py",
    "compare/test_stages.py",
    "compare/test_verdicts.py",
    "config",
    "dump/test_archive.py",
    "dump/test_journal.py",
    "dump/test_layout.py",
    "dump/test_parallel.py",
    "dump/test_reader.py",
    "dump/test_tensors.py",
    "graphdump/test_async_file.py",
    "graphdump/test_ir.py",
    "graphdump/test_layout.py",
    "graphdump/test_names.py",
    "graphdump/test_statistics.py",
    "stats/test_interface.py",
    "tasks",
)
# One smoke test per capability: the first test of these functions.
SMOKES = (
    "pytorch/test_calls.py",
    "pytorch/test_backward.py",
    "pytorch/test_neutral.py",
    "pytorch/test_overflow.py::test_a_planted_overflow_has_its_producer",
    "pytorch/test_overflow.py::test_a_producer_can_be_replayed",
    "pytorch/test_free_benchmark.py::test_an_unstable_function_is_found",
    "pytorch/test_kernels.py",
    "mindspore/test_calls.py::test_mix_knows_what_ran_inside_what",
    "mindspore/test_backward.py",
    "mindspore/test_graph_kernels.py::test_statistics_of_the_chosen_operators_and_steps",
    "compare/test_cases.py::test_01",
    "cli/test_show.py",
    "cli/test_recover.py",
    "cli/test_convert.py",
    "cli/test_run.py",
    "cli/test_run_ut.py",
    "check/test_models.py",
    "graphdump/test_reader.py",
    "view/test_export.py::test_joining",
    "view/test_server.py",
    "watch/test_monitor.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    waiting = list(SMOKES)
    for item in items:
        place = f"{item.path.relative_to(HERE).as_posix()}{item.nodeid[item.nodeid.index('::') :]}"
        reason = missing(place)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("slow"):
            continue
        smoke = next((start for start in waiting if place.startswith(start)), None)
        if smoke is not None:
            waiting.remove(smoke)
        if smoke is not None or place.startswith(UNITS):
            item.add_marker(pytest.mark.fast)


def pytest_collection_finish() -> None:
    """Collecting has imported every framework: the garbage collector need not look at these 700,000 objects again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _json_keeps_its_schema():
    """Whatever a test prints with --json in this process fits the schema that it names, and its messages are right."""
    from msprobe.report import json_output

    named = json_output.named

    def checked(name: str, content: dict[str, Any]) -> dict[str, Any]:
        whole = named(name, content)
        printed = json.loads(json.dumps(whole, allow_nan=False))
        check_schema(name, printed)
        check_messages(name, printed)
        return whole

    json_output.named = checked
    yield
    json_output.named = named


@pytest.fixture(autouse=True, scope="module")
def _level_of_the_log():
    """A file that quiets msprobe's log does so for itself only."""
    logger = logging.getLogger("msprobe")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True, scope="module")
def _nothing_compiled_is_left():
    """torch.compile keeps at most eight versions of one code object: what a file compiles is no matter of the next."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
