"""`tuner doctor`: what works on this machine, and what to install for the rest."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import typer

from tuner import __version__
from tuner.arch import ARCHES
from tuner.base.cache import Cache, cache_dir, limit_of
from tuner.cli.output import DbOption, JsonOption, emit_json, table
from tuner.compiler import headers, nvrtc
from tuner.compiler.sass import decode as sass
from tuner.errors import MachineError, TunerError
from tuner.machines import gpu
from tuner.machines.emulator import compiler
from tuner.store.sql import Store


@dataclass(frozen=True)
class Check:
    """One thing a machine has or lacks. `needed` ones make doctor fail."""

    what: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True


def doctor(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Say what works here and what to install."""
    found = [
        _python(),
        _compiler(),
        _cupy(),
        _try("emulator (g++)", lambda: str(compiler.compiler().version)),
        _gpu(),
        _headers(),
        _try("machine code as text (nvdisasm)", sass.nvdisasm, needed=False),
        _try("database", lambda: _database(db)),
        _try("cache", _cache),
    ]
    if as_json:
        emit_json({"tuner": __version__, "checks": [vars(each) for each in found]})
    else:
        rows = [(_mark(each), each.what, each.detail, each.remedy) for each in found]
        table(f"tuner {__version__} on {platform.platform()}", ("", "what", "found", "what to do"), rows)
    if not all(each.ok for each in found if each.needed):
        raise typer.Exit(1)


def _mark(check: Check) -> str:
    return "ok" if check.ok else "MISSING" if check.needed else "absent"


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
    found = _try(
        "compiling (NVRTC)", lambda: f"{nvrtc.toolkit().build}, for {', '.join(nvrtc.arches())}: {nvrtc.library()}"
    )
    lacking = [name for name in ARCHES if name not in nvrtc.arches()] if found.ok else []
    advice = [f"for {', '.join(lacking)} install a newer CUDA toolkit"] if lacking else []
    if found.ok and not nvrtc.mended():
        advice.append(
            "where the driver is for CUDA 13: pip install 'kerntune[cuda13]', as ptxas before 13.3 has known faults"
        )
    return replace(found, remedy="; ".join(advice)) if advice else found


def _headers() -> Check:
    """What kernels may include that are checked on PTX."""
    folders, lacking = headers.folders(), headers.lacking()
    remedy = "; ".join(dict.fromkeys(map(headers.advice, lacking)))
    return Check("headers of CUDA", not lacking, ", ".join(map(str, folders)) or "none", remedy, needed=False)


def _gpu() -> Check:
    found = _try("GPU", gpu.describe, needed=False)
    try:
        major, made_by = gpu.driver()[0], nvrtc.toolkit()
    except TunerError:
        return found
    if major >= int(made_by.version.partition(".")[0]):
        return found
    remedy = f"its driver does not load what {made_by} makes: install a newer driver, or 'kerntune[cuda{major}]'"
    return replace(found, ok=False, remedy=remedy, needed=True)


def _cupy() -> Check:
    builds = sorted(d.name for d in metadata.distributions() if d.name.lower().startswith("cupy"))
    remedy = "uninstall all but one: they overwrite each other" if len(builds) > 1 else ""
    remedy = remedy or ("" if builds else "pip install 'kerntune[cuda13]'")
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
