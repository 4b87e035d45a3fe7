"""`msprobe baseline` and `msprobe check`, with real scripts in a real repository."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .project import NET, commit, edit, git, make_project, msprobe, trains


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the baseline `net`."""
    place = make_project(tmp_path_factory.mktemp("saved") / "project")
    done = msprobe(place, "baseline", "save", "net", *trains())
    assert done.returncode == 0, done.stderr
    assert "bit-identical when repeated" in done.stdout
    return place


@pytest.fixture
def project(saved: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(saved, tmp_path / "project"))


def files(place: Path) -> dict[str, bytes]:
    return {str(one.relative_to(place)): one.read_bytes() for one in place.rglob("*") if one.is_file()}


def test_a_baseline_is_small_and_says_nothing_about_its_author(saved: Path) -> None:
    (place,) = (saved / "baselines" / "net").iterdir()
    assert {one.name for one in place.iterdir()} == {"baseline.json", "calls.txt", "dump.zip"}
    assert sum(one.stat().st_size for one in place.iterdir()) < 100_000
    assert all(one.stat().st_mode & 0o137 == 0 for one in place.iterdir())
    head = json.loads((place / "baseline.json").read_bytes())
    assert (head["schema"], head["exact"], head["steps"]) == ("msprobe/baseline/1", True, [0, 1])
    assert head["machine"]["framework"] == "torch"
    lines = (place / "calls.txt").read_text().splitlines()
    assert len(lines) == head["calls"] > 50
    assert sum("Functional.layer_norm.0.forward  float32[8,16]" in line for line in lines) == 2
    import zipfile

    with zipfile.ZipFile(place / "dump.zip") as archive:
        text = b"".join(archive.read(name) for name in archive.namelist()).decode()
    assert "File net.py, line 14" in text
    assert str(saved) not in text


def test_the_same_code_is_the_same_and_a_change_of_threads_is_rounding(project: Path) -> None:
    done = msprobe(project, "check", "net", *trains())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Same: ")
    assert "Checked bit by bit" in done.stdout
    assert "times the bare command" in done.stdout
    done = msprobe(project, "check", "net", "--json", *trains(), OMP_NUM_THREADS="1")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["passed"]
    assert (found["tolerance"], found["unlike"]) == ("rounding", ["threads 2"])
    assert found["verdict"] in ("same", "same_within_rounding")


def test_a_difference_names_the_call_its_line_and_the_changed_line(project: Path) -> None:
    edit(project, "eps=1e-5", "eps=1e-3")
    commit(project, "Tidy the network")
    done = msprobe(project, "check", "net", "--junit", "out.xml", "--github", *trains())
    assert done.returncode == 1, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith("::stop-commands::")  # a name in the answer is no command of the workflow
    assert f"::{first.removeprefix('::stop-commands::')}::" in lines
    assert lines[0].startswith("Differs: Functional.layer_norm.0.forward in Module.blocks.0.norm.LayerNorm")
    assert f"  source  {project}/net.py:14 in forward" in lines
    place = next(n for n, line in enumerate(lines) if line.startswith("  changed net.py:9 ("))
    assert lines[place].endswith("Tidy the network)")
    assert lines[place + 1].strip() == "- self.norm = nn.LayerNorm(width, eps=1e-5)"
    assert lines[place + 2].strip() == "+ self.norm = nn.LayerNorm(width, eps=1e-3)"
    note = next(line for line in lines if line.startswith("::error "))
    assert note.startswith("::error file=net.py,line=14,title=msprobe check net::Differs: ")
    suite = ElementTree.parse(project / "out.xml").getroot()
    assert suite.attrib["failures"] == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "layer_norm.0" in failure.attrib["message"]


def test_rounding_fails_only_where_bits_are_expected(project: Path) -> None:
    edit(project, "return x + self.down(h)", "return self.down(h) * 1.0000001 + x")
    done = msprobe(project, "check", "net", "--json", *trains())
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["tolerance"]) == (1, "same_within_rounding", "bitwise")
    assert found["origin"]["source"] == f"{project}/net.py:16 in forward"
    assert found["changed_lines"][0]["line"] == 16
    assert msprobe(project, "check", "net", "--tolerance", "rounding", *trains()).returncode == 0


def test_an_update_prints_what_changes(project: Path) -> None:
    edit(project, "F.gelu(self.up(h))", 'F.gelu(self.up(h), approximate="tanh")')
    before = files(project / "baselines")
    done = msprobe(project, "baseline", "save", "net", *trains())
    assert done.returncode == 2
    assert "has a baseline of this machine already" in done.stderr
    assert files(project / "baselines") == before
    done = msprobe(project, "baseline", "update", "net", "--quick", *trains())
    assert done.returncode == 0, done.stderr
    assert "The update changes: Functional.gelu.0.forward" in done.stdout
    assert files(project / "baselines") != before
    done = msprobe(project, "check", "net", *trains())
    assert done.returncode == 0
    assert "Checked within rounding" in done.stdout  # --quick has not shown that it repeats itself


def test_a_command_that_does_not_repeat_itself_is_not_saved(project: Path) -> None:
    edit(project, "torch.manual_seed(0)", "torch.seed()", "train.py")
    done = msprobe(project, "baseline", "save", "loose", *trains())
    assert done.returncode == 2
    assert "does not repeat itself, so nothing was saved" in done.stderr
    assert not (project / "baselines" / "loose").exists()
    done = msprobe(project, "baseline", "save", "loose", "--quick", "--seed", "1", *trains())
    assert done.returncode == 0, done.stderr


def test_other_machines_live_beside_and_rounding_is_allowed(project: Path) -> None:
    (place,) = (project / "baselines" / "net").iterdir()
    head = json.loads((place / "baseline.json").read_bytes())
    head["machine"]["cpu"] = "Elsewhere 9000"
    from msprobe.baseline.machine import Machine

    other = place.with_name(Machine(**head["machine"]).key)
    assert other != place
    shutil.move(place, other)
    (other / "baseline.json").write_text(json.dumps(head))
    done = msprobe(project, "check", "net", *trains())
    assert done.returncode == 0
    assert "Checked within rounding" in done.stdout
    assert "(the baseline has cpu Elsewhere 9000)" in done.stdout
    assert msprobe(project, "baseline", "save", "net", "--quick", *trains()).returncode == 0
    assert len(list((project / "baselines" / "net").iterdir())) == 2
    assert msprobe(project, "baseline", "list").stdout.count("\nnet ") == 2
    assert msprobe(project, "baseline", "remove", "net").returncode == 0
    assert not (project / "baselines" / "net").exists()


def test_ranks_of_torchrun_are_collected(tmp_path: Path) -> None:
    project = make_project(tmp_path / "ranks")
    edit(
        project,
        "model = Net()",
        'torch.distributed.init_process_group("gloo")\n'
        "model = torch.nn.parallel.DistributedDataParallel(Net())\n"
        "torch.manual_seed(torch.distributed.get_rank())",
        "train.py",
    )
    torchrun = [
        "--",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "train.py",
    ]
    done = msprobe(project, "baseline", "save", "ddp", "--quick", *torchrun)
    assert done.returncode == 0, done.stderr
    edit(project, "h = self.norm(x)", "h = self.norm(x) * (1 + torch.distributed.get_rank())")
    done = msprobe(project, "check", "ddp", "--json", *torchrun)
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["origin"]["rank"] == 1
    assert found["origin"]["source"].endswith("net.py:14 in forward")


class TestBadInput:
    """One clear sentence, and nothing is written over."""

    def refused(self, project: Path, *words: str, code: int = 2) -> str:
        before = files(project / "baselines")
        done = msprobe(project, *words)
        assert done.returncode == code, done.stdout + done.stderr
        assert files(project / "baselines") == before
        said = [line for line in done.stderr.splitlines() if line.startswith("msprobe ")]
        assert len(said) == 1, done.stderr
        return said[0]

    @pytest.mark.parametrize("name", ["../x", ".hidden", "a b", "", "x\n"])
    def test_a_dirty_name(self, project: Path, name: str) -> None:
        assert "is not a name for a baseline" in self.refused(project, "baseline", "save", name, *trains())
        assert "is not a name for a baseline" in self.refused(project, "check", name, *trains())

    def test_no_such_baseline(self, project: Path) -> None:
        assert "There is no baseline 'nix' in baselines. There are: net." in self.refused(
            project, "check", "nix", *trains()
        )

    def test_no_command(self, project: Path) -> None:
        assert "give the command after --" in self.refused(project, "check", "net")

    def test_a_truncated_dump(self, project: Path) -> None:
        (file,) = (project / "baselines").rglob("dump.zip")
        file.write_bytes(file.read_bytes()[:-100])
        said = self.refused(project, "check", "net", *trains())
        assert "dump.zip is damaged or incomplete" in said
        assert "Restore it from git, or save it again." in said

    def test_a_damaged_head(self, project: Path) -> None:
        (file,) = (project / "baselines").rglob("baseline.json")
        file.write_bytes(file.read_bytes()[:-30])
        assert "baseline.json cannot be read" in self.refused(project, "check", "net", *trains())
        file.write_text('{"schema": "msprobe/baseline/1", "machine": {}}')
        assert "baseline.json is damaged" in self.refused(project, "check", "net", *trains())
        file.write_text('{"schema": "msprobe/baseline/9"}')
        assert "is not a baseline of this version" in self.refused(project, "check", "net", *trains())

    def test_an_archive_that_leads_elsewhere(self, project: Path) -> None:
        import hashlib
        import zipfile

        (file,) = (project / "baselines").rglob("dump.zip")
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("step0/../../../../stolen.json", "{}")
        head = file.with_name("baseline.json")
        content = json.loads(head.read_bytes())
        head.write_text(json.dumps({**content, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}))
        assert "it has a file 'step0/../" in self.refused(project, "check", "net", *trains())

    def test_a_different_major_version(self, project: Path) -> None:
        from msprobe.baseline.machine import Machine

        (file,) = (project / "baselines").rglob("baseline.json")
        head = json.loads(file.read_bytes())
        head["machine"]["version"] = "1.13.1"
        file.write_text(json.dumps(head))
        file.parent.rename(file.parent.with_name(Machine(**head["machine"]).key))
        said = self.refused(project, "check", "net", *trains())
        assert "was saved with torch 1.13.1, this run uses 2." in said

    def test_a_different_model(self, project: Path) -> None:
        convolutions = (
            "class Net(nn.Sequential):\n    def __init__(self):\n"
            "        layers = (nn.Conv2d(1, 1, 3, padding=1) for _ in range(30))\n"
            "        super().__init__(nn.Unflatten(1, (1, 4, 4)), *layers, nn.Flatten(), nn.Tanh(), nn.Linear(16, 5))\n"
        )
        (project / "net.py").write_text(NET.partition("class Block")[0] + convolutions)
        done = msprobe(project, "check", "net", *trains())
        assert done.returncode == 1
        assert "different models" in done.stdout
        assert "is 'net' the right baseline?" in done.stdout
        assert "Nothing was saved: " in self.refused(project, "baseline", "update", "net", *trains())

    def test_a_small_different_model(self, project: Path) -> None:
        """Most calls of the training step have a counterpart, but none of the modules."""
        other = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        other += "        self.only = nn.Linear(16, 5)\n    def forward(self, x):\n        return self.only(x)\n"
        (project / "net.py").write_text(NET.partition("class Block")[0] + other)
        done = msprobe(project, "check", "net", *trains())
        assert done.returncode == 1
        said = done.stdout.splitlines()[0]
        assert said.startswith("Differs: the baseline is of a different model: none of its ")
        assert said.endswith(" modules is in this run; is 'net' the right baseline?")
        assert "Nothing was saved: " in self.refused(project, "baseline", "update", "net", *trains())

    def test_a_script_that_fails(self, project: Path) -> None:
        (project / "train.py").write_text("import torch\nraise SystemExit(3)\n")
        assert "The command failed (exit code 3)" in self.refused(project, "check", "net", *trains())
        assert self.refused(project, "check", "net", "--skip-broken", *trains(), code=125)
        assert self.refused(project, "check", "nix", "--skip-broken", *trains(), code=255)

    def test_a_script_without_a_model(self, project: Path) -> None:
        (project / "train.py").write_text("import torch\ntorch.ones(3).sum()\n")
        assert "Nothing was collected" in self.refused(project, "check", "net", *trains())

    def test_a_command_that_does_not_exist(self, project: Path) -> None:
        assert "Write: python train.py" in self.refused(project, "check", "net", "--", "train.py")


def test_a_sitecustomize_of_the_user_still_runs(project: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nprint('mine', 'torch' in sys.modules)\n")
    done = msprobe(project, "check", "net", *trains(), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "mine False" in done.stdout


def test_without_git_there_are_no_changed_lines(project: Path) -> None:
    shutil.rmtree(project / ".git")
    edit(project, "eps=1e-5", "eps=1e-3")
    done = msprobe(project, "check", "net", *trains())
    assert done.returncode == 1
    assert "  changed" not in done.stdout


def test_the_diff_is_read_as_git_writes_it(project: Path) -> None:
    from msprobe.baseline.changed_lines import changed_lines
    from msprobe.dump.stack_frames import Frame

    first = git(project, "rev-parse", "HEAD").strip()
    edit(project, "h = self.norm(x)", "h = self.norm(x)\n        h = h + 0")
    edit(project, "lr=1e-3", "lr=2e-3", "train.py")
    commit(project, "Two places")
    edit(project, "return self.head(x)", "return self.head(x).float()")
    frames = [Frame(str(project / "net.py"), 16, "forward", "")]
    found, count = changed_lines(project, first, frames, "something else")
    assert count == 3
    assert (found[0].file, found[0].line, found[0].added) == ("net.py", 15, "h = h + 0")
    assert found[0].commit.endswith(" Two places")
    assert next(one for one in found if one.line == 29).commit == ""
    found, _ = changed_lines(project, first, [], "the optimizer has lr 0.002, not 0.001", most=1)
    assert found[0].file == "train.py"
    assert changed_lines(project, "f" * 40, frames, "")[1] == 3  # unknown here: since the commit before
