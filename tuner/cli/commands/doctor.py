"""`tuner doctor`: what works on this machine, and what to install for the rest."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import typer

from tuner import __version__
from tuner.arch import ARCHES
from tuner.backends import gpu
from tuner.backends.emulator import compiler
from tuner.base.cache import Cache, cache_dir, limit_of
from tuner.cli.output import DbOption, JsonOption, emit_json, table
from tuner.compiler import headers, nvrtc
from tuner.compiler.nvrtc_library import VARIABLE
from tuner.compiler.sass import decode as sass
from tuner.errors import MachineError, TunerError
from tuner.store.sql import Store

_TOOLKIT = re.compile(r"cuda-toolkit\[[^\]]*\bnvrtc\b")
_CUDA_13 = "'cupy-cuda13x>=14,<15' 'cuda-bindings>=12.9.4,<14' 'cuda-toolkit[nvrtc,cudart]==13.*'"
_VERSION = re.compile(r"==\s*(\d+)\.(\d+)")


@dataclass(frozen=True)
class Check:
    """A component of the machine: available, missing, or faulty. A missing `needed` one makes doctor fail."""

    what: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True
    fault: bool = False


def doctor(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Say what works here and what to install."""
    checks = [
        _python(),
        _compiler(),
        _torch(),
        _library("JAX", "jax", "tuner.jax", "'jax>=0.10'"),
        _library("transformers", "transformers", "tuner.transformers", "'transformers>=5.23' 'torch>=2.7'"),
        _cupy(),
        _try("emulator (g++)", lambda: str(compiler.compiler().version)),
        _gpu(),
        _headers(),
        _try("machine code as text (nvdisasm)", sass.nvdisasm, needed=False),
        _try("database", lambda: _database(db)),
        _try("cache", _cache),
    ]
    if as_json:
        emit_json({"tuner": __version__, "checks": [vars(check) for check in checks]})
    else:
        rows = [(_mark(check), check.what, check.detail, check.remedy) for check in checks]
        table(f"tuner {__version__} on {platform.platform()}", ("", "what", "found", "what to do"), rows)
    if not all(check.ok for check in checks if check.needed):
        raise typer.Exit(1)


def _mark(check: Check) -> str:
    return "ok" if check.ok else "FAULT" if check.fault else "MISSING" if check.needed else "absent"


def _try(what: str, look: Callable[[], str], needed: bool = True) -> Check:
    try:
        return Check(what, True, look(), needed=needed)
    except TunerError as error:
        problem, _, remedy = str(error).rpartition(": ")
        return Check(what, False, problem, remedy, needed)


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check("Python", ok, platform.python_version(), "" if ok else "install 3.11 or newer")


def _compiler() -> Check:
    check = _try(
        "compiling (NVRTC)", lambda: f"{nvrtc.toolkit().build}, for {', '.join(nvrtc.arches())}: {nvrtc.library()}"
    )
    missing = [name for name in ARCHES if name not in nvrtc.arches()] if check.ok else []
    advice = [f"for {', '.join(missing)} install a newer CUDA toolkit"] if missing else []
    fault = check.ok and nvrtc.faulty()
    if fault:
        advice.append(f"its ptxas miscompiles some right kernels: {_mended_compiler()}")
    elif check.ok and not nvrtc.mended():
        advice.append(f"its ptxas has known faults: {_mended_compiler()}")
    return replace(check, ok=check.ok and not fault, fault=fault, remedy="; ".join(advice)) if advice else check


def _mended_compiler() -> str:
    """Return the command that installs a compiler without known faults."""
    newer = "'nvidia-cuda-nvrtc>=13.3,<14'"
    if _driver_major() not in (None, *range(13, 99)):
        return "all for CUDA 12 since 12.8 are: install a driver for CUDA 13, and then 'kerntune[cuda13]'"
    if _pinned():  # pip would remove the conflicting one
        return f"pip install --target nvrtc {newer}; export {VARIABLE}=$PWD/nvrtc/nvidia/cu13/lib/libnvrtc.so.13"
    return f"pip install --upgrade {newer}, or name its file by {VARIABLE}"


def _driver_major() -> int | None:
    try:
        return gpu.driver()[0]
    except TunerError:
        return None


def _torch() -> Check:
    """Check PyTorch by its package metadata, since importing it takes seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return _absent("PyTorch", "tuner.torch", "'torch>=2.7'")
    pinned = _pinned()
    brings = _any_faulty(pinned) and _try("", lambda: str(nvrtc.faulty())).detail != "False"
    remedy = f"that compiler miscompiles some right kernels: {_mended_compiler()}" if brings else ""
    return Check("PyTorch", True, f"{version}, which pins {' and '.join(pinned) or 'no NVRTC'}", remedy, needed=False)


def _library(what: str, package: str, module: str, requirement: str) -> Check:
    """A library whose programs `module` runs on these kernels."""
    try:
        return Check(what, True, metadata.version(package), needed=False)
    except metadata.PackageNotFoundError:
        return _absent(what, module, requirement)


def _absent(what: str, module: str, requirement: str) -> Check:
    return Check(what, False, "not installed", f"for {module}: pip install {requirement}", needed=False)


def _pinned() -> list[str]:
    """Return the requirements of PyTorch's package on NVRTC, or on the toolkit that contains it."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return []
    names = (requirement.partition(";")[0].strip() for requirement in requirements)
    return [name for name in names if name.startswith("nvidia-cuda-nvrtc") or _TOOLKIT.match(name)]


def _any_faulty(pinned: list[str]) -> bool:
    versions = (_VERSION.search(requirement) for requirement in pinned)
    return any(nvrtc.faulty((int(version[1]), int(version[2]))) for version in versions if version)


def _headers() -> Check:
    """Check the headers that kernels checked on PTX may include."""
    folders, missing = headers.folders(), headers.lacking()
    remedy = "; ".join(dict.fromkeys(map(headers.advice, missing)))
    return Check("headers of CUDA", not missing, ", ".join(map(str, folders)) or "none", remedy, needed=False)


def _gpu() -> Check:
    check = _try("GPU", gpu.describe, needed=False)
    if not check.ok:
        return check
    try:
        gpu.check_driver(nvrtc.toolkit())
    except TunerError as error:
        return replace(check, ok=False, remedy=str(error), needed=True)
    return check


def _cupy() -> Check:
    builds = sorted(d.name for d in metadata.distributions() if d.name.lower().startswith("cupy"))
    remedy = "uninstall all but one: they overwrite each other" if len(builds) > 1 else ""
    remedy = remedy or ("" if builds else f"pip install {_CUDA_13}")
    return Check("CuPy", len(builds) == 1, ", ".join(builds) or "not installed", remedy)


def _database(db: str | None) -> str:
    with Store.open(db) as store:
        return f"{store.place}{'' if store.writable else ' (read only)'}"


def _cache() -> str:
    root: Path = cache_dir()
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise MachineError(f"{root} cannot be written: set TUNER_CACHE_DIR to another folder")
    limit, cubins = limit_of(root), Cache.of("cubin").size()
    bound = f"of {limit.nbytes / 1e9:g} GB" if limit.nbytes else "without a limit"
    free = shutil.disk_usage(existing).free
    return f"{root}: {limit.held() / 1e9:.2f} GB {bound}, {cubins.entries} cubins; {free / 1e9:.0f} GB free"
