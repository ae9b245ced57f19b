"""Tests of eviction: what a full cache removes, and what it keeps."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.base.assets import ROOT
from tuner.base.cache import Cache, CacheEntry, Limit, key_of, limit_of
from tuner.errors import UsageError

DAY = 86400.0
BYTES = 1000  # of an entry's data


def filled(root: Path, ages: dict[str, float], kind: str = "cubin") -> dict[str, Path]:
    """Store entries of slightly more than BYTES by name; each was last used so many seconds ago."""
    cache = Cache(root / kind)
    for name, age in ages.items():
        cache.put(key_of(name), CacheEntry(bytes(BYTES)))
        os.utime(cache.path(key_of(name)), (time.time() - age,) * 2)
    return {name: cache.path(key_of(name)) for name in ages}


def stayed(paths: dict[str, Path]) -> str:
    return "".join(name for name, path in paths.items() if path.exists())


def test_what_was_used_longest_ago_goes_first_in_all_caches_of_the_folder(tmp_path: Path) -> None:
    paths = filled(tmp_path, {"a": 5 * DAY, "b": 2 * DAY}) | filled(tmp_path, {"c": 4 * DAY, "d": 3 * DAY}, "emulator")
    removed = Limit(tmp_path, 3 * BYTES).sweep()
    assert stayed(paths) == "bd" and 2 * BYTES < removed < 3 * BYTES


def test_what_is_read_is_used(tmp_path: Path) -> None:
    paths = filled(tmp_path, {"a": 5 * DAY, "b": 2 * DAY})
    assert Cache(tmp_path / "cubin").get(key_of("a"))
    Limit(tmp_path, 2 * BYTES).sweep()
    assert stayed(paths) == "a"


def test_what_was_used_within_minutes_stays_although_it_is_too_much(tmp_path: Path) -> None:
    paths = filled(tmp_path, {"a": 30.0, "b": 300.0})
    assert Limit(tmp_path, BYTES).sweep() == 0 and stayed(paths) == "ab"


def test_a_folder_goes_whole_and_other_files_stay(tmp_path: Path) -> None:
    folder = Cache(tmp_path / "emulator").folder(key_of("f"), lambda at: (at / "big").write_bytes(bytes(5000)))
    stranger = tmp_path / "emulator" / "ab" / "thesis.tex"
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text("mine")
    assert folder
    for path in (folder, stranger):
        os.utime(path, (0, 0))
    Limit(tmp_path, 1000).sweep()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [stranger]


def test_what_a_killed_writer_left_goes_in_its_turn(tmp_path: Path) -> None:
    partial = tmp_path / "cubin" / "ab" / "tmp123.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(5000))
    os.utime(partial, (0, 0))
    Limit(tmp_path, 1000).sweep()
    assert not partial.exists()


def test_writing_keeps_the_caches_near_their_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cubin", Limit(tmp_path, 100 * BYTES))
    for i in range(400):
        cache.put(key_of(str(i)), CacheEntry(bytes(BYTES)))
        os.utime(cache.path(key_of(str(i))), (i, i))
    assert 60 * BYTES < cache.size().bytes < 150 * BYTES
    assert cache.get(key_of("399")) and not cache.get(key_of("0"))


def test_a_limit_of_0_is_none(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cubin", Limit(tmp_path, 0))
    for i in range(50):
        cache.put(key_of(str(i)), CacheEntry(bytes(BYTES)))
        os.utime(cache.path(key_of(str(i))), (i, i))
    assert cache.size().entries == 50


def test_processes_may_sweep_and_read_at_once(tmp_path: Path) -> None:
    filled(tmp_path, {str(i): DAY + i for i in range(300)})
    load = "from pathlib import Path; from tuner.base.cache import Limit"
    code = f"{load}; Limit(Path({str(tmp_path)!r}), 9000).sweep()"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    while any(process.poll() is None for process in both):
        results = [Cache(tmp_path / "cubin").get(key_of(str(i))) for i in range(299, 0, -10)]
        assert all(entry is None or entry.data == bytes(BYTES) for entry in results)
    assert [process.returncode for process in both] == [0, 0]


@pytest.mark.parametrize(("text", "nbytes"), [("0.5", 500_000_000), ("0", 0), ("", 4_000_000_000)])
def test_the_limit_is_given_in_gigabytes(
    text: str, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_CACHE_LIMIT", text)
    assert limit_of(tmp_path) == Limit(tmp_path, nbytes)


@pytest.mark.parametrize("text", ["2 GB", "-1", "nan", "inf"])
def test_a_limit_that_is_no_size_is_refused_with_an_example(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE_LIMIT", text)
    with pytest.raises(UsageError, match=r"TUNER_CACHE_LIMIT is .* give gigabytes, such as 0\.5"):
        Cache.of("cubin")
