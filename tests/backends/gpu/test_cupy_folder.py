"""Tests of importing CuPy on machines where it cannot create its cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.backends import gpu


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home that is no folder, and where temporary folders go."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setenv("CUPY_CACHE_DIR", "")  # so that what is set below is undone
    monkeypatch.delenv("CUPY_CACHE_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_without_a_home_that_can_be_written_cupy_keeps_its_cache_in_a_temporary_folder(no_home: Path) -> None:
    gpu.prepare_cache()
    folder = Path(os.environ["CUPY_CACHE_DIR"])
    assert folder.parent == no_home and folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_can_be_written_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cupy"))
    gpu.prepare_cache()
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "cupy")


@pytest.mark.usefixtures("no_home")
def test_without_a_home_compilers_are_found_and_the_gpu_is_looked_for() -> None:
    load = "from tuner.compiler import nvrtc; from tuner.backends import gpu"
    look = f"{load}; print(nvrtc.arches()[0], gpu.available() in (True, False))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert done.stdout == "sm_80 True\n", done.stderr
