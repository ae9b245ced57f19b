"""What `tuner doctor` says of machines that lack something."""

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
    """(exit code, each check by what it is about)."""
    done = CliRunner().invoke(build(), ["doctor", "--json"])
    return done.exit_code, {check["what"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))


def test_the_compiler_is_named_with_its_library_and_the_arches_that_it_knows() -> None:
    code, found = doctor()
    assert code == 0
    detail = found["compiling (NVRTC)"]["detail"]
    assert nvrtc.toolkit().build in detail and nvrtc.library() in detail and "sm_90a" in detail


def test_a_compiler_with_known_faults_works_and_a_better_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc_library, "version", lambda: (13, 3))
    assert "ptxas" not in doctor()[1]["compiling (NVRTC)"]["remedy"]
    monkeypatch.setattr(nvrtc_library, "version", lambda: (13, 2))
    code, found = doctor()
    assert code == 0 and "ptxas before 13.3" in found["compiling (NVRTC)"]["remedy"]


@pytest.mark.usefixtures("driver")
def test_a_driver_that_loads_what_nvrtc_makes_is_fine() -> None:
    assert doctor()[1]["GPU"]["ok"]


@pytest.mark.usefixtures("driver")
def test_a_driver_older_than_nvrtc_fails_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    older = int(nvrtc.toolkit().version.partition(".")[0]) - 1
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "driverGetVersion", lambda: older * 1000)
    code, found = doctor()
    assert code == 1 and not found["GPU"]["ok"]
    assert f"install a newer driver, or 'kerntune[cuda{older}]'" in found["GPU"]["remedy"]


def test_what_the_caches_hold_is_told_beside_their_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNER_CACHE_LIMIT", "0.5")
    assert "0.00 GB of 0.5 GB, 0 cubins" in doctor()[1]["cache"]["detail"]


def test_a_limit_that_is_no_size_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE_LIMIT", "much")
    code, found = doctor()
    assert code == 1 and not found["cache"]["ok"] and "such as 0.5" in found["cache"]["remedy"]
