"""The frame: quick help, one verb imported, errors as one line and an exit code."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import msprobe
from msprobe import cli

DATA = Path(__file__).parents[1] / "dump/data"
COMMAND = [sys.executable, "-m", "msprobe"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *(str(one) for one in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_the_verbs_that_exist_and_an_example() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "show " in done.stdout
    assert "example:" in done.stdout
    package = Path(cli.__file__).parent
    listed = " ".join(done.stdout.split())  # long lines are wrapped
    for name, text in cli.VERBS:
        exists = (package / f"{name}.py").exists() or (package / name).is_dir()
        assert (f"  {name} " in done.stdout and text in listed) == exists, name


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    heavy = ("torch", "mindspore", "numpy", "rich", "yaml", "msprobe.dump", "msprobe.config", "msprobe.cli.show")
    code = (
        "import sys\nfrom msprobe.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr == "[]\n"
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    bare = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import argparse"], check=True, timeout=60)
    last = resource.getrusage(resource.RUSAGE_CHILDREN)
    python = last.ru_utime - bare.ru_utime + last.ru_stime - bare.ru_stime
    assert spent < 4 * python + 0.05, (spent, python)


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"msprobe {msprobe.__version__} (msprobe-precision)\n"


@pytest.mark.parametrize("verb", ["show", "recover"])
def test_every_verb_has_help_with_an_example_and_its_exit_codes(verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0
    assert f"msprobe {verb} ./dump_path" in done.stdout
    assert "exit code:" in done.stdout


def test_wrong_usage_is_exit_code_2() -> None:
    assert run().returncode == 2
    done = run("shwo", "x")
    assert done.returncode == 2
    assert "unknown verb 'shwo'; did you mean show?" in done.stderr
    assert run("show").returncode == 2
    assert run("-f", "tensorflow", "show", ".").returncode == 2


def test_what_is_not_a_dump_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run("show", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"msprobe show: {tmp_path} is not a dump")
    assert done.stderr.count("\n") == 1


def test_the_older_form_with_a_framework_is_checked_against_the_dump() -> None:
    dump = DATA / "p83_statistics_L0_statistics"
    assert run("-f", "pytorch", "show", dump).returncode == 0
    done = run("-f", "mindspore", "show", dump)
    assert done.returncode == 2
    assert "is a pytorch dump, not a mindspore dump" in done.stderr


def test_an_error_of_msprobe_shows_its_traceback_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr(cli, "_run", broken)
    assert cli.main(["show", "."]) == 2
    assert "RuntimeError: boom" in capsys.readouterr().err


def test_a_reader_that_closes_our_output_is_not_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "show", str(DATA / "p83_tensor_mix_statistics")],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_an_output_that_cannot_be_written_is_one_sentence(unbuffered: str, form: str) -> None:
    options = ["--json"] if form == "json" else []
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "show", str(DATA / "p83_tensor_mix_statistics"), *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert done.stderr == "msprobe show: cannot write to standard output: No space left on device.\n"


def test_a_closed_output_is_an_error_and_a_closed_error_output_is_not() -> None:
    command = " ".join(["exec", *COMMAND, "show", str(DATA / "p83_tensor_mix_statistics")])
    done = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "msprobe show: standard output is closed.\n")
    done = subprocess.run(f"{command} 2>&-", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "Anomalies: none" in done.stdout


def test_control_c_is_quiet_and_exit_code_130(tmp_path: Path) -> None:
    started = (
        "import os, signal, sys, time; from msprobe import cli; from msprobe.dump import reader\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # the tests may run where Ctrl-C is ignored
        "reader.open_dump = lambda *given: (os.write(1, b'on\\n'), time.sleep(60))\n"  # a dump that takes long to read
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", started, "show", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


def test_json_output_is_strict_json(tmp_path: Path) -> None:
    rank = tmp_path / "step0/rank"
    rank.mkdir(parents=True)
    tensor = '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "Max": NaN, "Norm": Infinity}'
    (rank / "dump.json").write_text('{"data": {"Torch.add.0.forward": {"output": [' + tensor + "]}}}")
    done = run("show", tmp_path, "--json")

    def refuse(token: str) -> None:
        raise AssertionError(token)

    shown = json.loads(done.stdout, parse_constant=refuse)
    assert shown["ranks"][0]["anomalies"]["NaN"] == {"count": 1, "record": "Torch.add.0.forward", "slot": "output.0"}
