"""What pytest loads: two options, a marker and the fixture `numerics`. It imports no framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import pytest

from msprobe.testing.names import baseline_name

_MARKER = "numerics(tolerance='auto', steps=None): defaults of the fixture numerics in this test; see docs/ci.md"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("numerics", "numbers of tests, checked against baselines (msprobe)")
    group.addoption("--numerics-update", action="store_true", help="save the baselines of the fixture numerics")
    group.addoption("--numerics-dir", metavar="DIR", help="where they are (default: baselines in the root directory)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def numerics(request: pytest.FixtureRequest) -> Numerics:
    """`with numerics("block"): …` collects what runs inside, and fails the test if its numbers differ from the
    baseline."""
    return Numerics(request)


class Numerics:
    """One test's way to its baselines."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        marker = request.node.get_closest_marker("numerics")
        self._defaults: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
        self._used: set[str] = set()

    @contextmanager
    def __call__(
        self,
        name: str = "",
        *,
        layout: Optional[str] = None,
        golden: Optional[str] = None,
        tolerance: Optional[str] = None,
        steps: Optional[int] = None,
    ) -> Iterator[None]:
        """Collects the calls inside the block.

        `name` is that of the baseline, by default the name of the test. `golden` is the name of the baseline of a
        different layout, such as one device: nothing is saved under `layout`, which only appears in messages. The ranks
        of torchrun are collected together.
        """
        from msprobe.dump.errors import DumpError
        from msprobe.testing.block import Block, check_block

        config = self._request.config
        tolerance = tolerance or self._defaults.get("tolerance", "auto")
        if tolerance not in ("auto", "bitwise", "rounding"):
            raise pytest.UsageError(f"numerics: tolerance must be auto, bitwise or rounding, not {tolerance!r}")
        own = name or layout or self._request.node.name
        if own in self._used:
            raise pytest.UsageError(f"numerics: {own!r} is used twice in this test; give each block its own name")
        self._used.add(own)
        block = Block(
            name=baseline_name(self._request.path.stem, golden or own),
            said=own,
            is_other_layout=golden is not None,
            directory=Path(config.getoption("--numerics-dir") or config.rootpath / "baselines"),
            root=config.rootpath,
            test=self._request.node.nodeid,
            tolerance=tolerance,
            steps=steps or self._defaults.get("steps"),
            update=bool(config.getoption("--numerics-update")),
        )
        try:
            work = block.make_directory()
        except DumpError as error:
            pytest.fail(f"numerics {own!r}: {error}", pytrace=False)
        with block.collect(work):
            yield
        failure = check_block(block, work / "dump")
        if failure:
            pytest.fail(failure, pytrace=False)
