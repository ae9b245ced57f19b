"""Tests of the file cache under interference from other processes and the disk."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tuner.base.assets import ROOT
from tuner.base.cache import Cache, CacheEntry, cache_dir, digest_of, key_of

KEY = key_of("source", "options")
ENTRY = CacheEntry(b"\x7fELF" + bytes(range(256)) * 100, {"log": "ptxas: 5 µs\n", "seconds": 0.25})
WRITER = """
import sys
from pathlib import Path
from tuner.base.cache import Cache, CacheEntry
cache, letter = Cache(Path(sys.argv[1])), sys.argv[3].encode()
print("ready", flush=True)
for _ in range(int(sys.argv[4])):
    cache.put(sys.argv[2], CacheEntry(letter * 200_000, {"letter": sys.argv[3]}))
"""


def writer(root: Path, letter: str, times: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(root), KEY, letter, str(times)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_what_was_put_is_got(tmp_path: Path) -> None:
    assert Cache(tmp_path).put(KEY, ENTRY)
    assert Cache(tmp_path).get(KEY) == ENTRY


def test_an_empty_entry_is_an_entry(tmp_path: Path) -> None:
    Cache(tmp_path).put(KEY, CacheEntry(b""))
    assert Cache(tmp_path).get(KEY) == CacheEntry(b"", {})


def test_an_unknown_key_is_a_miss(tmp_path: Path) -> None:
    assert Cache(tmp_path / "nowhere").get(KEY) is None


def test_keys_tell_apart_where_one_part_ends() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("ab", "c", ""), key_of("a\0bc")}) == 5


@pytest.mark.parametrize("renamed", ["here/b", "there/a", "there/here/a"])
def test_files_are_told_apart_by_their_place_and_content_and_not_by_their_order(tmp_path: Path, renamed: str) -> None:
    one, other, changed = tmp_path / "here" / "a", tmp_path / renamed, tmp_path / "elsewhere" / "here" / "a"
    for path, text in ((one, "x"), (other, "x"), (changed, "y")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    roots = {one: tmp_path, other: tmp_path, changed: tmp_path / "elsewhere"}
    assert len({digest_of(root, [kind]) for kind, root in roots.items()}) == 3
    assert digest_of(tmp_path, [one, other]) == digest_of(tmp_path, [other, one, one])


@pytest.mark.parametrize("kept", [0, 1, 55, 56, 1000, -1])
def test_a_truncated_entry_is_a_miss_and_can_be_written_again(tmp_path: Path, kept: int) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, ENTRY)
    path = cache.path(KEY)
    path.write_bytes(path.read_bytes()[:kept])
    assert cache.get(KEY) is None
    cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY


@pytest.mark.parametrize("where", [0, 4000, -100, -57, -50, -10])
def test_one_flipped_bit_makes_a_miss(tmp_path: Path, where: int) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, ENTRY)
    content = bytearray(cache.path(KEY).read_bytes())
    content[where] ^= 1
    cache.path(KEY).write_bytes(content)
    assert cache.get(KEY) is None


def test_data_come_first_in_the_file_so_that_a_library_can_be_loaded_from_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, ENTRY)
    assert cache.path(KEY).read_bytes().startswith(ENTRY.data)


def test_size_counts_entries_and_clear_removes_them_but_no_other_file(tmp_path: Path) -> None:
    cache, stranger = Cache(tmp_path), tmp_path / "ab" / "thesis.tex"
    cache.put(KEY, ENTRY)
    cache.put(key_of("another"), ENTRY)
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text("mine")
    held = cache.clear()
    assert held.entries == 2 and held.bytes > 2 * len(ENTRY.data)
    assert cache.size().entries == 0 and stranger.read_text() == "mine"


def test_a_folder_that_cannot_be_written_warns_once_and_costs_only_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = Cache(tmp_path / "file" / "cache")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stored = [cache.put(KEY, ENTRY), cache.put(KEY, ENTRY)]
    assert stored == [False, False] and cache.get(KEY) is None
    assert (
        len(caught) == 1 and str(cache.root) in str(caught[0].message) and "TUNER_CACHE_DIR" in str(caught[0].message)
    )


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))"
    load = "from pathlib import Path; from tuner.base.cache import *"
    put = f"{load}; print(Cache(Path('.')).put('abc', CacheEntry(bytes(99_999))))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", f"{limit}\n{put}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n" and "File too large" in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_is_built_once_and_not_at_all_when_its_builder_fails(tmp_path: Path) -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "text").write_text("whole")
        if len(built) == 1:
            raise OSError("no compiler")

    with pytest.raises(OSError, match="no compiler"):
        Cache(tmp_path).folder(KEY, build)
    results = [Cache(tmp_path).folder(KEY, build) for _ in range(2)]
    assert results[0] == results[1] and results[0] and (results[0] / "text").read_text() == "whole"
    assert len(built) == 2 and len(list(tmp_path.glob("??/*"))) == 1


def test_a_folder_that_another_process_builds_meanwhile_is_taken(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "text").write_text("mine")
        Cache(tmp_path).folder(KEY, lambda other: (other / "text").write_text("theirs"))

    result = Cache(tmp_path).folder(KEY, build)
    assert result and (result / "text").read_text() == "theirs"
    assert len(list(tmp_path.glob("??/*"))) == 1


def test_where_no_folder_can_be_written_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot write to the cache"):
        assert Cache(tmp_path / "file" / "cache").folder(KEY, lambda _: None) is None


def test_readers_see_whole_entries_while_two_processes_write_the_same_key(tmp_path: Path) -> None:
    writers = [writer(tmp_path, letter, 200) for letter in "ab"]
    seen = set()
    while any(process.poll() is None for process in writers):
        if entry := Cache(tmp_path).get(KEY):
            seen.add((entry.metadata["letter"], entry.data))
    assert seen and seen <= {(letter, letter.encode() * 200_000) for letter in "ab"}


def test_a_writer_killed_at_any_moment_leaves_a_whole_entry_or_none(tmp_path: Path) -> None:
    for attempt in range(4):
        process = writer(tmp_path, "k", 10**9)
        time.sleep(0.01 + 0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        entry = Cache(tmp_path).get(KEY)
        assert entry is None or entry.data == b"k" * 200_000
    Cache(tmp_path).clear()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))
    assert Cache.of("cubin").root == tmp_path / "cubin"
    monkeypatch.delenv("TUNER_CACHE_DIR")
    assert cache_dir().name == "tuner" and cache_dir() != tmp_path
