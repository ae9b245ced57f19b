"""Tests of the distributed package: its metadata, and a first search from the wheel outside of the checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tuner.base.assets import ROOT

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return next(folder.glob("kerntune-*.whl"))


def test_the_metadata_and_the_long_description_are_valid(wheel: Path, tmp_path: Path) -> None:
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=tmp_path)


def test_a_first_search_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    installed = Path(sysconfig.get_path("purelib"))
    (site / "dependencies.pth").write_text(f"{installed}\n")  # its own .pth files are not read
    (site / "nvidia").symlink_to(installed / "nvidia")  # where the NVRTC library is looked for
    where = run(python, "-c", "import tuner; print(tuner.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    own = {"TUNER_DB": str(tmp_path / "tuner.db")}
    search = ("search", "linear_attention", "--gpu", "sm_80", "--implementation", "naive", "--budget", "1")
    report = tmp_path / "report.html"
    run(python, "-m", "tuner", *search, "--report", report, cwd=tmp_path, **own)
    assert report.stat().st_size > 0
    assert "linear_attention" in run(python, "-m", "tuner", "show", cwd=tmp_path, **own)
