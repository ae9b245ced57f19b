"""Tests of trust in cached files, which are executed: files that another user could have written are not read, and
damage is detected.
"""

import json
import os
import stat
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.base import cache as caching
from tuner.base.cache import Cache, CacheEntry, cache_dir, key_of, make_folder, safe_folder

KEY = key_of("kernel")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


def build(folder: Path) -> None:
    (folder / "kernel.so").write_bytes(b"\x7fELF" + bytes(1000))
    (folder / "deeper").mkdir()
    (folder / "deeper" / "text").write_text("whole")


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the temporary folder of these tests."""
    monkeypatch.setattr(caching.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    caching._warn_of_others.cache_clear()
    caching._verified.clear()
    yield tmp_path / "temporary"
    caching._verified.clear()


def give_away(path: Path) -> None:
    os.chown(path, 65534, -1)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_the_group(path: Path) -> None:
    path.chmod(0o770)


def open_by_a_list(path: Path) -> None:
    """Let user 65534 write, by the format of https://man7.org/linux/man-pages/man5/acl.5.html in an attribute."""
    user, named, group, mask, other, nobody = 1, 2, 4, 16, 32, 2**32 - 1
    entries = [(user, 7, nobody), (named, 7, 65534), (group, 5, nobody), (mask, 7, nobody), (other, 5, nobody)]
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", content)
    except OSError:
        pytest.skip("this file system has no access control lists")


FAULTS = [pytest.param(give_away, marks=as_root), open_to_all, open_to_the_group, open_by_a_list]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("below", [".", "cubin"])
def test_a_folder_that_others_may_change_is_not_used_and_named_once(
    private: Path, tmp_path: Path, fault: "caching.Callable[[Path], None]", below: str
) -> None:
    (tmp_path / "cache" / "cubin").mkdir(parents=True)
    Cache(tmp_path / "cache" / "cubin").put(KEY, CacheEntry(b"foreign"))
    fault(tmp_path / "cache" / below)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        caches = [Cache.of("cubin"), Cache.of("cubin")]
    (warning,) = caught
    assert str(tmp_path / "cache") in str(warning.message) and "chmod -R go-w" in str(warning.message)
    assert caches[0].root.is_relative_to(private) and caches[0].get(KEY) is None
    assert caches[0].put(KEY, CacheEntry(b"mine")) and caches[1].get(KEY) == CacheEntry(b"mine")
    assert stat.S_IMODE(caches[0].root.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("fault", FAULTS)
def test_an_entry_that_others_may_change_is_a_miss_and_written_again(
    tmp_path: Path, fault: "caching.Callable[[Path], None]"
) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, CacheEntry(b"foreign"))
    fault(cache.path(KEY))
    assert cache.get(KEY) is None
    assert cache.put(KEY, CacheEntry(b"mine")) and cache.get(KEY) == CacheEntry(b"mine")


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_read_or_written_in_a_folder_of_entries_that_others_may_change(
    tmp_path: Path, fault: "caching.Callable[[Path], None]"
) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, CacheEntry(b"foreign"))
    fault(cache.path(KEY).parent)
    assert cache.get(KEY) is None
    with pytest.warns(RuntimeWarning, match="cannot write"):
        assert not cache.put(KEY, CacheEntry(b"mine"))
    assert cache.folder(KEY, build) is None


@as_root
def test_a_link_of_another_user_is_not_followed_and_one_of_ours_is(private: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    assert Cache.of("cubin").root == tmp_path / "cache" / "cubin"
    os.lchown(tmp_path / "cache", 65534, -1)
    with pytest.warns(RuntimeWarning, match="belongs to user 65534"):
        assert Cache.of("cubin").root.is_relative_to(private)


def test_folders_are_made_writable_by_their_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "one" / "two")
        cache = Cache(tmp_path / "cache" / "cubin")
        assert cache.put(KEY, CacheEntry(b"mine")) and cache.folder(KEY, build) and cache.get(KEY)
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.is_dir() and path.name != "deeper"]
    assert len(made) >= 5 and not any(path.stat().st_mode & 0o022 for path in made)


@pytest.mark.usefixtures("private")
def test_folders_of_code_are_below_the_same_guard() -> None:
    assert safe_folder("tune_kernel") == cache_dir() / "tune_kernel"
    open_to_all(cache_dir())
    with pytest.warns(RuntimeWarning, match="can be written by others"):
        assert safe_folder("tune_kernel") != cache_dir() / "tune_kernel"


def flip(folder: Path) -> None:
    data = bytearray((folder / "kernel.so").read_bytes())
    data[500] ^= 1
    (folder / "kernel.so").write_bytes(data)


def truncate(folder: Path) -> None:
    (folder / "deeper" / "text").write_text("wh")


def remove(folder: Path) -> None:
    (folder / "kernel.so").unlink()


def add(folder: Path) -> None:
    (folder / "more.h").write_text("#error")


def link(folder: Path) -> None:
    (folder / "deeper" / "text").unlink()
    (folder / "deeper" / "text").symlink_to("../kernel.so")


def forget(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def empty(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps([]))


def open_a_file(folder: Path) -> None:
    (folder / "kernel.so").chmod(0o666)


@pytest.mark.parametrize("fault", [flip, truncate, remove, add, link, forget, empty, open_a_file])
def test_a_folder_that_is_not_what_its_manifest_says_is_built_again(
    private: Path, tmp_path: Path, fault: "caching.Callable[[Path], None]"
) -> None:
    cache = Cache(tmp_path / "cache")
    folder = cache.folder(KEY, build)
    assert folder is not None
    fault(folder)
    caching._verified.clear()  # as in another process
    assert cache.folder(KEY, build) == folder
    assert (folder / "kernel.so").read_bytes() == b"\x7fELF" + bytes(1000)
    assert sorted(path.name for path in folder.rglob("*")) == ["deeper", "kernel.so", "manifest.json", "text"]
    assert private.exists()


def test_a_manifest_is_read_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, read = Cache(tmp_path), []
    manifest = caching._manifest
    assert cache.folder(KEY, build)
    caching._verified.clear()
    monkeypatch.setattr(caching, "_manifest", lambda folder: read.append(folder) or manifest(folder))
    assert [cache.folder(KEY, build) for _ in range(3)] == [cache.path(KEY).with_suffix(".folder")] * 3
    assert len(read) == 1
