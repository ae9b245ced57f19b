"""Detection and invocation of the g++ that builds for the emulator."""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tuner.errors import MachineError

_OLDEST = 12  # first version with -ftrivial-auto-var-init
# g++ allocates a lot of memory and exits soon. With huge pages, which glibc requests, it takes 2 to 5 % less time.
_MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864"}


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A g++ that can build for this machine."""

    path: str
    version: str


@cache
def compiler() -> HostCompiler:
    """Return the machine's g++ (or `TUNER_CXX`). Raises MachineError if it is missing or the machine is not
    supported.
    """
    _refuse_machine()
    named = os.environ.get("TUNER_CXX", "g++")
    path = shutil.which(named)
    if path is None:
        raise MachineError(f"no g++ found at {named!r}: install it (apt install g++), or set TUNER_CXX to its path")
    version, release = _described(path)
    # The instrumentation uses options that only GCC has.
    if "clang" in version or release < _OLDEST:
        raise MachineError(
            f"{path} is {version}: the emulator needs g++ {_OLDEST} or later; install it, or set TUNER_CXX to one"
        )
    return HostCompiler(path, version)


def _refuse_machine() -> None:
    system, machine = platform.system(), platform.machine()
    supported = "the emulator runs on Linux, on x86-64 or aarch64"
    if system != "Linux":
        raise MachineError(
            f"{supported}, not on {system} {machine}: run it there in a Linux container, such as Docker's"
        )
    if machine not in ("x86_64", "aarch64"):
        raise MachineError(f"{supported}, not on {machine}: use another machine")
    lacking = {"avx2", "fma", "f16c", "bmi2"} - set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    if machine == "x86_64" and lacking:
        raise MachineError(f"the emulator needs a CPU with AVX2, of 2013 or later; this CPU lacks {sorted(lacking)}")


def _described(path: str) -> tuple[str, int]:
    """Return a compiler's name and its major version."""
    try:
        version, release = (run([path, option]).strip() for option in ("--version", "-dumpversion"))
    except MachineError as error:
        raise MachineError(f"{path} does not run: {error}; set TUNER_CXX to a g++") from error
    if not (version and re.match(r"\d+", release)):
        raise MachineError(f"{path} is not a compiler: it prints no version; set TUNER_CXX to a g++")
    return version.splitlines()[0], int(release.partition(".")[0])


def run(command: list[str]) -> str:
    """Run a command and return its output. Raises MachineError with its first errors."""
    try:
        environment = {**_MEMORY, **os.environ}
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError as error:
        raise MachineError(f"cannot run {command[0]}: {error}") from error
    if done.returncode:
        raise MachineError(_first_errors(done.stderr) or f"{command[0]} ended with status {done.returncode}")
    return done.stdout


def _first_errors(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line]
    return "\n".join(lines[:5]) or text[-500:].strip()
