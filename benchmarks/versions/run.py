"""Runs the demos and the fast tests with each pair of versions in list.json: `make versions`.

python benchmarks/versions/run.py [--only TEXT] [--keep]

One virtual environment after the other, in .venv-versions, removed after its run. The results go to results.json beside
this file, and the table of docs/versions.md is written from it: rows that were not run now keep their older date. It
exits with 1 if a demo or a test failed. A pair takes about 10 GB of disk for a while, because the wheels of PyTorch on
the package index come with CUDA.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
LIST, RESULTS = Path(__file__).with_name("list.json"), Path(__file__).with_name("results.json")
PAGE, BEGIN, END = ROOT / "docs" / "versions.md", "<!-- written by make versions -->", "<!-- end -->"
DEMOS = {"torch": "examples/demo.py", "mindspore": "examples/mindspore_demo.py"}
TEST_PACKAGES = ("pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "jsonschema>=4.18", "setuptools>=77", "wheel")
PACKAGES = ("numpy<2", "ml_dtypes>=0.3", "protobuf>=4", "pyyaml>=6", "rich>=13", "xxhash>=3.0")
LONGEST = 3600  # seconds, of one demo or of the tests


@dataclass
class Row:
    """One pair of versions and what came out."""

    python: str
    torch: str
    mindspore: str
    date: str = ""
    commit: str = ""
    """Of msprobe, with a + if files were changed."""
    demos: dict[str, bool] = field(default_factory=dict)
    passed: int = 0
    skipped: list[str] = field(default_factory=list)
    """The reasons of the tests that need a newer framework."""
    failed: list[str] = field(default_factory=list)
    problem: str = ""
    """Why the pair was not run."""

    @property
    def name(self) -> str:
        return f"python{self.python}-torch{self.torch}-mindspore{self.mindspore}"

    @property
    def ok(self) -> bool:
        return not self.problem and not self.failed and self.passed > 0 and all(self.demos.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only the pairs whose name contains this, such as torch2.9")
    parser.add_argument("--keep", action="store_true", help="do not remove the environments; use those that are there")
    options = parser.parse_args()
    wanted = [row for row in _read(LIST) if options.only in row.name]
    for row in wanted:
        print(f"{row.name} …", flush=True)
        _run(row, options.keep)
        print(f"  {_cells(row)}", flush=True)
        _keep_result(row)
    return 0 if wanted and all(row.ok for row in wanted) else 1


def _keep_result(row: Row) -> None:
    known = {one.name: one for one in (_read(RESULTS) if RESULTS.exists() else [])} | {row.name: row}
    rows = [known.get(one.name, one) for one in _read(LIST)]
    RESULTS.write_text(json.dumps([asdict(one) for one in rows if one.date], indent=2) + "\n")
    write_page(rows)


def _read(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())]


def _run(row: Row, keep: bool) -> None:
    row.date, row.commit = time.strftime("%Y-%m-%d"), _commit()
    directory = ROOT / ".venv-versions" / row.name
    try:
        python = _environment(row, directory)
        with tempfile.TemporaryDirectory() as place:
            for package, script in DEMOS.items():
                row.demos[package] = (
                    _execute([python, str(ROOT / script)], Path(place), f"demo-{package}-{row.name}") == 0
                )
            _test(row, python, Path(place))
    except (OSError, subprocess.SubprocessError) as error:
        row.problem = str(error)
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _commit() -> str:
    """Results and the table, which this command itself writes, are not a change."""
    written = [f":!{path.relative_to(ROOT)}" for path in (RESULTS, PAGE)]
    words = [["rev-parse", "--short=8", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", ".", *written]]
    head, changed = (
        subprocess.run(["git", "-C", str(ROOT), *one], capture_output=True, text=True, check=False).stdout.strip()
        for one in words
    )
    return head + "+" * bool(changed)


def _environment(row: Row, directory: Path) -> str:
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([_interpreter(row.python), "-m", "venv", str(directory)], check=True)
        frameworks = (f"torch=={row.torch}", f"mindspore=={row.mindspore}", "numpy<2")
        _install(python, *frameworks)
        _install(python, *TEST_PACKAGES, *PACKAGES)
    _install(python, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    return str(python)


def _install(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _interpreter(version: str) -> str:
    """Python of this version: on the path, or one that pyenv has installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"))
    found = [str(installed[-1])] if installed else [path for path in [shutil.which(f"python{version}")] if path]
    if not found:
        raise OSError(f"Python {version} is not installed here")
    return found[0]


def _execute(command: list[str], place: Path, name: str) -> Optional[int]:
    """The exit code; None after LONGEST seconds: then every process of the command is ended."""
    log = ROOT / ".venv-versions" / f"{name}.log"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=place, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            return process.wait(LONGEST)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def _test(row: Row, python: str, place: Path) -> None:
    report = place / "report.xml"
    command = [python, "-m", "pytest", "-n", "1", "-m", "fast", "-p", "no:cacheprovider", f"--junitxml={report}"]
    code = _execute([*command, *map(str, _fast_files())], ROOT, f"tests-{row.name}")
    if not report.exists():
        row.problem = "the tests did not end" if code is None else f"pytest ended with {code} and without a report"
        return
    for case in ElementTree.parse(report).iter("testcase"):
        _count(row, case)


def _count(row: Row, case: Any) -> None:
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        row.failed.append(f"{case.get('classname')}.{case.get('name')}")
    elif skipped is None:
        row.passed += 1
    elif str(skipped.get("message")).startswith("needs "):
        row.skipped.append(str(skipped.get("message")))


def _fast_files() -> list[Path]:
    """The files that have a test of `make test-fast`: others may import packages that are not installed."""
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text())
    lists = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("UNITS", "SMOKES")
    ]
    return sorted({ROOT / "tests" / entry.partition("::")[0] for entries in lists for entry in entries})


def write_page(rows: list[Row]) -> None:
    """Puts the table into the page, between its two comments."""
    lines = ["| Python | PyTorch | MindSpore | demos | fast tests | date | commit |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        versions = f"{row.python} | {row.torch} | {row.mindspore}"
        lines.append(f"| {versions} | {_cells(row)} | {row.date} | {row.commit or '-'} |")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"]))


def _cells(row: Row) -> str:
    if row.problem or not row.date:
        return f"not run | {row.problem or 'not run'}"
    demos = [f"{package} {'works' if fine else 'fails'}" for package, fine in row.demos.items() if not fine] or ["work"]
    failed = f", {len(row.failed)} failed: {', '.join(f'`{one}`' for one in row.failed[:5])}" if row.failed else ""
    skipped = f", {len(row.skipped)} need a newer version" if row.skipped else ""
    return f"{', '.join(demos)} | {row.passed:,} passed{skipped}{failed}"


if __name__ == "__main__":
    sys.exit(main())
