"""mindstudio-probe and msprobe in one environment: clear words, whichever is installed first or removed.

Needs its wheel: MSPROBE_PEER_WHEEL, or what `pip download` finds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEER = "mindstudio-probe==26.2.0"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Ours, and theirs."""
    place = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(place)]
    subprocess.run([*build, str(ROOT)], check=True)
    (ours,) = place.glob("msprobe_precision-*.whl")
    theirs = os.environ.get("MSPROBE_PEER_WHEEL", "")
    if not theirs:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(place / "peer"), PEER]
        if subprocess.run(fetch, check=False, capture_output=True).returncode:
            pytest.skip(f"{PEER} cannot be downloaded here")
        (found,) = (place / "peer").glob("*.whl")
        theirs = str(found)
    return str(ours), theirs


class Environment:
    def __init__(self, path: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
        self.bin = path / "bin"
        (site,) = path.glob("lib/python*/site-packages")
        others = [entry for entry in sys.path if entry.endswith("site-packages")]
        (site / "others.pth").write_text("\n".join(others))  # numpy and the rest, without an installation of msprobe
        self.python = str(self.bin / "python")

    def pip(self, *words: str) -> None:
        subprocess.run([self.python, "-m", "pip", *words, "-q"], check=True, capture_output=True)

    def say(self, *words: str) -> str:
        done = subprocess.run([self.python, *words], capture_output=True, text=True, cwd=self.bin, check=False)
        return " ".join((done.stdout + done.stderr).split())


def test_the_mix_is_named_and_its_repair_works(wheels: tuple[str, str], tmp_path: Path) -> None:
    ours, theirs = wheels
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", theirs)
    environment.pip("install", "--no-deps", ours)
    remedy = "pip uninstall -y mindstudio-probe msprobe-precision; pip install msprobe-precision (or mindstudio-probe)"
    assert remedy in environment.say("-c", "import msprobe")
    assert remedy in environment.say("-m", "msprobe", "--version")
    assert remedy in environment.say("-m", "msprobe", "doctor")

    environment.pip("uninstall", "-y", "mindstudio-probe")
    again = "pip install --force-reinstall --no-deps msprobe-precision"
    said = environment.say("-c", "from msprobe.pytorch import PrecisionDebugger")
    assert said.endswith(again), said
    assert "mindstudio-probe" in said
    assert "msprobe-precision" in environment.say("-m", "msprobe", "doctor")

    environment.pip("install", "--force-reinstall", "--no-deps", ours)
    assert environment.say("-c", "import msprobe; print(msprobe.__version__)") == "0.1.0"
    assert environment.say("-m", "msprobe", "--version") == "msprobe 0.1.0 (msprobe-precision)"


def test_the_warning_says_what_follows_if_ours_is_removed(wheels: tuple[str, str], tmp_path: Path) -> None:
    """Then nothing of ours is left to say it: the words come before, and their remedy gives a complete neighbour."""
    ours, theirs = wheels
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", theirs)
    environment.pip("install", "--no-deps", ours)
    assert "Do not uninstall only one" in environment.say("-m", "msprobe", "doctor")

    environment.pip("uninstall", "-y", "msprobe-precision")
    assert "cannot import name" in environment.say("-c", "from msprobe.pytorch import PrecisionDebugger")
    environment.pip("uninstall", "-y", "mindstudio-probe", "msprobe-precision")
    environment.pip("install", "--no-deps", theirs)
    name = environment.say("-c", "import importlib.util as u; print(u.find_spec('msprobe.pytorch').origin)")
    assert name.endswith("msprobe/pytorch/__init__.py")


def test_ours_alone_says_nothing(wheels: tuple[str, str], tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", wheels[0])
    assert environment.say("-m", "msprobe", "--version") == "msprobe 0.1.0 (msprobe-precision)"
    assert environment.say("-c", "import msprobe") == ""
