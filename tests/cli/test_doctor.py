"""Tests of `tuner doctor` on machines where something is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.cupy_double import driver
from tuner.cli.app import build
from tuner.compiler import nvrtc, nvrtc_library

__all__ = ["driver"]  # a fixture


def doctor() -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and each check by its subject."""
    done = CliRunner().invoke(build(), ["doctor", "--json"])
    return done.exit_code, {check["what"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))


def test_the_compiler_is_named_with_its_library_and_the_arches_that_it_knows() -> None:
    code, report = doctor()
    assert code == 0
    detail = report["compiling (NVRTC)"]["detail"]
    assert nvrtc.toolkit().build in detail and nvrtc.library() in detail and "sm_90a" in detail


@pytest.mark.parametrize(
    ("version", "ok", "told"),
    [((13, 3), True, ""), ((13, 2), False, "pip install"), ((12, 8), False, "pip install"), ((12, 6), True, "faults")],
)
def test_a_compiler_that_miscompiles_is_a_fault_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], ok: bool, told: str
) -> None:
    monkeypatch.setattr(nvrtc_library, "version", lambda: version)
    code, report = doctor()
    check = report["compiling (NVRTC)"]
    assert (code == 0, check["ok"], check["fault"]) == (ok, ok, not ok)
    assert told in check["remedy"] and bool(check["remedy"]) == bool(told)


@pytest.mark.usefixtures("driver")
def test_with_a_driver_for_cuda_12_only_a_newer_driver_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "driverGetVersion", lambda: 12080)
    monkeypatch.setattr(nvrtc_library, "version", lambda: (12, 8))
    assert "install a driver for CUDA 13" in doctor()[1]["compiling (NVRTC)"]["remedy"]


@pytest.mark.parametrize(
    ("version", "requires", "detail", "remedy"),
    [
        ((13, 0), ["filelock"], "2.9.0, which pins no NVRTC", ""),
        (
            (13, 0),
            ["nvidia-cuda-nvrtc==13.0.88; sys_platform == 'linux'"],
            "nvidia-cuda-nvrtc==13.0.88",
            "TUNER_NVRTC=",
        ),
        ((13, 3), ["nvidia-cuda-nvrtc==13.0.88"], "nvidia-cuda-nvrtc==13.0.88", ""),
        ((12, 6), ["nvidia-cuda-nvrtc-cu12==12.6.77"], "nvidia-cuda-nvrtc-cu12==12.6.77", ""),
        ((13, 2), ["cuda-toolkit[cudart,nvrtc]==13.2.1"], "cuda-toolkit[cudart,nvrtc]==13.2.1", "TUNER_NVRTC="),
    ],
)
def test_torch_is_named_with_the_compiler_that_it_pins(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: tuple[int, int],
    requires: list[str],
    detail: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(nvrtc_library, "version", lambda: version)
    about = tmp_path / "torch-2.9.0.dist-info"
    about.mkdir()
    wanted = "".join(f"Requires-Dist: {require}\n" for require in requires)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n{wanted}")
    monkeypatch.syspath_prepend(tmp_path)
    report = doctor()[1]["PyTorch"]
    assert report["ok"] and detail in report["detail"]
    assert remedy in report["remedy"] and bool(report["remedy"]) == bool(remedy)


@pytest.mark.parametrize(("what", "package"), [("PyTorch", "torch"), ("JAX", "jax"), ("transformers", "transformers")])
def test_a_missing_library_is_advised_by_a_name_that_pip_knows(
    monkeypatch: pytest.MonkeyPatch, what: str, package: str
) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / package).is_dir()])
    check = doctor()[1][what]
    assert not check["ok"] and not check["needed"] and f": pip install '{package}>=" in check["remedy"]


@pytest.mark.usefixtures("driver")
def test_a_driver_that_loads_what_nvrtc_makes_is_fine() -> None:
    assert doctor()[1]["GPU"]["ok"]


@pytest.mark.usefixtures("driver")
def test_a_driver_older_than_nvrtc_fails_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    older = int(nvrtc.toolkit().version.partition(".")[0]) - 1
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "driverGetVersion", lambda: older * 1000)
    code, report = doctor()
    assert code == 1 and not report["GPU"]["ok"]
    assert f"install R580 or later, or 'kerntune[cuda{older}]'" in report["GPU"]["remedy"]


def test_what_the_caches_hold_is_told_beside_their_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNER_CACHE_LIMIT", "0.5")
    assert "0.00 GB of 0.5 GB, 0 cubins" in doctor()[1]["cache"]["detail"]


def test_a_limit_that_is_no_size_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE_LIMIT", "much")
    code, report = doctor()
    assert code == 1 and not report["cache"]["ok"] and "such as 0.5" in report["cache"]["remedy"]
