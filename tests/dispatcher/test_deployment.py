"""Tests of a deployed service: warmed up with NVRTC, run without a compiler, a home or a writable folder."""

import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.cupy_double import Driver, asarray, driver
from tuner import arch, operators
from tuner.arch import ARCHES
from tuner.backends import emulator
from tuner.backends.emulator.build import runtime_library
from tuner.base.cache import Cache, cache_dir
from tuner.compiler import nvrtc, nvrtc_library
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import MachineError, StoreError
from tuner.spec.instance import Instance
from tuner.store import locations
from tuner.store.records import Snapshot

__all__ = ["driver"]  # a fixture

WEIGHT = np.linspace(0.5, 2, 32, dtype=np.float32)
FIELDS = {"width": 32, "rows": 5}

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a separate cache."""
    runtime_library()  # once a process, and not into this cache
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_nvrtc(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Iterator[None]:
    """To be asked for after all that compiles; `driver` knows the kernels, whoever compiled them."""
    operator = operators.load("row_norm")
    for implementation in operators.implementations("row_norm"):
        problem = operator.problem(**FIELDS)
        source = render(Instance.default(operator, implementation, problem, ARCHES["sm_90a"]), "host")
        driver.know(emulator.build(source, checked=False))
    hide(monkeypatch)
    yield
    nvrtc.toolkit.cache_clear()


def hide(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MachineError("compiling needs the NVRTC library (it is hidden)")

    monkeypatch.setattr(nvrtc_library, "_library", missing)
    nvrtc.toolkit.cache_clear()


def at() -> Dispatcher:
    return Dispatcher(Snapshot.load([]))


def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)


@pytest.fixture
def warm(folder: Path) -> Path:
    at().warmup("row_norm", FIELDS, target=arch.gpu("H100"))
    return folder


@pytest.fixture
def compiler() -> str:
    return str(nvrtc.toolkit())


@pytest.mark.usefixtures("warm", "compiler", "no_nvrtc")
def test_what_was_warmed_up_runs_without_a_compiler_and_says_whose_it_is(driver: Driver, compiler: str) -> None:
    service, x = at(), rows()
    assert service.explain("row_norm", asarray(x), asarray(WEIGHT)).compiler == f"{compiler}, by a warm-up elsewhere"
    y, _ = service.call("row_norm", asarray(x), asarray(WEIGHT))
    assert np.allclose(y.host, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * WEIGHT, atol=1e-5)
    assert driver.launches
    assert f"  machine code: {compiler}\n" in str(service.explain("row_norm", asarray(x), asarray(WEIGHT)))


@pytest.mark.usefixtures("driver", "folder", "no_nvrtc")
def test_what_was_not_warmed_up_names_the_call_that_does_so(folder: Path) -> None:
    with pytest.raises(MachineError) as caught:
        at().call("row_norm", asarray(rows()), asarray(WEIGHT))
    wanted = f"fill the cache at {folder} where NVRTC is, by dispatcher.warmup('row_norm', {{'rows': 5}}, gpu='"
    assert "it is hidden" in str(caught.value) and wanted in str(caught.value)
    assert at().explain("row_norm", asarray(rows()), asarray(WEIGHT)).compiler.startswith("none: compiling needs")


def test_a_compiler_that_is_there_compiles_what_another_left(warm: Path) -> None:
    """Only machines without one take what others made."""
    cache, options = Cache(warm / "cubin"), Options("sm_90a")
    operator = operators.load("row_norm")
    sources = [
        render(Instance.default(operator, implementation, problem, ARCHES["sm_90a"]))
        for implementation in operators.implementations("row_norm")
        if implementation.refusal(problem := operator.problem(**FIELDS), ARCHES["sm_90a"]) is None
    ]
    (cubin,) = filter(None, (nvrtc.kept(source, options, cache) for source in sources))
    assert cubin.toolkit == nvrtc.toolkit() and cubin.toolkit.build == nvrtc.toolkit().build
    assert all(nvrtc.kept(source, Options("sm_80"), cache) is None for source in sources)


def test_a_second_warm_up_writes_nothing(warm: Path) -> None:
    """Services warm up as they start, over a cache that may be read-only by then."""
    before = {path: path.stat().st_ino for path in warm.rglob("*.entry")}
    at().warmup("row_norm", FIELDS, target=arch.gpu("H100"))
    assert {path: path.stat().st_ino for path in warm.rglob("*.entry")} == before and len(before) == 2


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user that no table knows, and a folder for temporary files."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TUNER_CACHE_DIR", "TUNER_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_without_a_home_the_cache_is_a_temporary_folder_of_the_user(no_home: Path) -> None:
    assert cache_dir() == cache_dir() and cache_dir().parent == no_home
    assert cache_dir().stat().st_mode & 0o777 == 0o700


def test_a_temporary_folder_that_somebody_else_made_is_not_used(no_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = cache_dir()
    me = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: me)
    (no_home / f"tuner-{os.getuid()}").mkdir()
    cache = cache_dir()
    assert cache == cache_dir() and cache.parent == no_home
    assert cache != theirs and cache.name != f"tuner-{os.getuid()}"


def test_without_a_home_records_are_read_where_they_are_named(no_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locations.layers() == (str(locations.SHIPPED),)
    with pytest.raises(StoreError, match="no home for a database: name one, by TUNER_DB or --db"):
        locations.database()
    (no_home / "mine.jsonl").touch()
    monkeypatch.setenv("TUNER_DB", f"~/theirs.jsonl{os.pathsep}{no_home / 'mine.jsonl'}")
    assert locations.layers() == (str(no_home / "mine.jsonl"), str(locations.SHIPPED))
