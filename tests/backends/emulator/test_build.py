"""Tests of builds: which compilers the emulator accepts, and how often it runs one."""

import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.backends.emulator.compiler import compiler
from tuner.errors import MachineError


@pytest.fixture(autouse=True)
def looked_for_again() -> Iterator[None]:
    compiler.cache_clear()
    yield
    compiler.cache_clear()


def script(path: Path, version: str, release: str) -> Path:
    """Return a program that reports the version of a compiler."""
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" || echo {release}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "release"),
    [("Debian clang version 14.0.6", "14.0.6"), ("g++-11 (Debian 11.3.0-12) 11.3.0", "11")],
)
def test_another_compiler_than_a_recent_gcc_is_refused(
    version: str, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_CXX", str(script(tmp_path / "c++", version, release)))
    with pytest.raises(MachineError, match=rf"is {re.escape(version)}: the emulator needs g\+\+ 12 or later"):
        compiler()


def test_the_compiler_that_the_variable_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = script(tmp_path / "g++-99", "g++-99 (GCC) 99.1.0", "99")
    monkeypatch.setenv("TUNER_CXX", str(named))
    assert (compiler().path, compiler().version) == (str(named), "g++-99 (GCC) 99.1.0")


@pytest.mark.parametrize(
    ("system", "machine", "says"),
    [
        ("Darwin", "arm64", "not on Darwin arm64: run it there in a Linux container"),
        ("Linux", "riscv64", "not on riscv64"),
    ],
)
def test_another_machine_is_refused_with_what_to_do(
    system: str, machine: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(MachineError, match=f"Linux, on x86-64 or aarch64, {says}"):
        compiler()


def test_a_compiler_that_does_not_run_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TUNER_CXX", str(broken))
    with pytest.raises(MachineError, match=r"no such library; set TUNER_CXX to a g\+\+"):
        compiler()


def test_a_program_that_says_no_version_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CXX", str(script(tmp_path / "true", "", "")))
    with pytest.raises(MachineError, match=r"true is not a compiler: .*TUNER_CXX"):
        compiler()


BUILD = """
from tuner.backends.emulator.build import shared_object
from tuner.compiler.source import Source
shared_object(Source(("nothing",), 'extern "C" __global__ void nothing() {}', (), "host"), checked=False)
"""


def wrapped(tmp_path: Path, before: str) -> dict[str, str]:
    """Variables with an empty cache, and with a g++ that runs lines of a shell first."""
    path = tmp_path / "g++"
    path.write_text(f'#!/bin/sh\n{before}\nexec {compiler().path} "$@"\n')
    path.chmod(0o755)
    return {**os.environ, "TUNER_CACHE_DIR": str(tmp_path / "cache"), "TUNER_CXX": str(path)}


def test_a_disk_that_is_full_costs_only_the_cache(tmp_path: Path) -> None:
    full = 'echo "fatal error: cannot write PCH file: No space left on device" >&2; exit 1'
    environment = wrapped(tmp_path, f'case "$*" in *"-o {tmp_path}/cache/"*) {full};; esac')
    subprocess.run([sys.executable, "-c", BUILD], env=environment, check=True)
    assert not list((tmp_path / "cache").rglob("*.gch"))


def test_two_processes_that_want_the_same_build_it_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    environment = wrapped(tmp_path, f'echo "$@" >> {calls}')
    both = [subprocess.Popen([sys.executable, "-c", BUILD], env=environment) for _ in range(2)]
    assert [build.wait() for build in both] == [0, 0]
    built = [line for line in calls.read_text().splitlines() if " -o " in line]
    assert len(built) == 2  # the primitives, and the kernel


def test_a_build_that_is_killed_is_done_by_who_waits_for_it(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    environment = wrapped(tmp_path, f'case "$*" in *" -o "*) [ -e {begun} ] || {{ touch {begun}; sleep 3600; }};; esac')
    first = subprocess.Popen([sys.executable, "-c", BUILD], env=environment, start_new_session=True)
    while not begun.exists():
        time.sleep(0.01)
    assert [path.stat().st_size for path in (tmp_path / "cache").rglob("*.lock.partial")] == [0, 0]
    second = subprocess.Popen([sys.executable, "-c", BUILD], env=environment)
    os.killpg(first.pid, signal.SIGKILL)
    assert second.wait() == 0
    assert not list((tmp_path / "cache").rglob("*.lock.partial"))
