"""Files that any process may write and every process may trust: one checksummed entry, or one folder, a key.

An entry is the data, then its metadata as JSON, then a footer with their lengths and checksum. The data come first,
so a cached shared library can be loaded from the entry's own file.
"""

import json
import os
import shutil
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_dir

from tuner.errors import UsageError

_FOOTER = struct.Struct("<QQ32s8s")  # bytes of data, bytes of metadata, SHA-256 of both, magic
_MAGIC = b"tuner-c1"
VARIABLE = "TUNER_CACHE_LIMIT"
_DEFAULT_GB = 4.0
_SWEEPS = 16  # a filled limit's worth of writing is looked over so often, on average
_KEPT = 1 - 2 / _SWEEPS  # of the limit, after a sweep
_IN_USE_S = 600.0  # what was used so lately may still be open in another process


@dataclass(frozen=True, slots=True)
class Entry:
    """What was stored under a key."""

    data: bytes
    metadata: Mapping[str, str | float] = field(default_factory=dict)


class Footprint(NamedTuple):
    """What a cache holds on disk."""

    entries: int
    bytes: int


class _Item(NamedTuple):
    used: float  # seconds since the epoch
    nbytes: int
    path: Path  # a file, or a folder that goes whole


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on the bytes under `folder`, which holds caches; 0 is no bound.

    Not exact: writers do not count what others write, so each write of n bytes makes a sweep due with the chance
    16 n / `nbytes`, drawn from its key, which is uniform. What was used in the last ten minutes always stays.
    """

    folder: Path
    nbytes: int

    def written(self, key: str, nbytes: int) -> None:
        """To be told after each write, by the entry's hexadecimal key."""
        if self.nbytes and int(key[:8], 16) / 16**8 < _SWEEPS * nbytes / self.nbytes:
            self.sweep()

    def sweep(self) -> int:
        """Remove what was used longest ago until an eighth of the limit is free; returns the bytes removed.

        Any number of processes may do so at once.
        """
        items = sorted(self._items())
        surplus = sum(item.nbytes for item in items) - int(_KEPT * self.nbytes)
        removed = 0
        for item in items:
            if removed >= surplus or item.used > time.time() - _IN_USE_S:
                break
            remove(item.path)
            removed += item.nbytes
        return removed

    def held(self) -> int:
        """Bytes of everything in the caches."""
        return sum(item.nbytes for item in self._items())

    def _items(self) -> Iterator[_Item]:
        for path in self.folder.glob("*/??/*"):
            if path.suffix in (".entry", ".folder", ".partial"):
                with suppress(OSError):  # another process was faster
                    yield _Item(path.stat().st_mtime, size(path), path)


def cache_dir() -> Path:
    """`TUNER_CACHE_DIR`, or the user's cache folder; a temporary one where nobody knows of a home."""
    if named := os.environ.get("TUNER_CACHE_DIR"):
        return Path(named)
    with suppress(RuntimeError):
        found = Path(user_cache_dir("tuner"))
        if found.is_absolute():  # before its version 4.14 platformdirs says ~ where there is no home
            return found
    return spare("tuner")


def spare(name: str) -> Path:
    """A temporary folder, one a user, which processes share; another where somebody else has that name."""
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder if folder.lstat().st_uid == os.getuid() else _own(folder.name)


@cache
def _own(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-"))


def key_of(*parts: str) -> str:
    """A key that changes with any of the texts that decide an entry."""
    return sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def digest_of(root: Path, files: Iterable[Path]) -> str:
    """A digest that changes with any of these files below `root`: with its place there, or with a byte of it."""
    digest = sha256()
    for path in sorted(set(files)):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Cache:
    """Entries of one kind in a folder. Safe for any number of processes, and when any of them is killed.

    A cache never fails: what cannot be read is a miss, and what cannot be written is dropped with one warning. What
    was not used for longest goes when the caches under one limit are full, but never within minutes of its last use.
    """

    root: Path
    limit: Limit | None = None

    @classmethod
    def of(cls, kind: str) -> "Cache":
        """The user's cache of `kind`, such as `cubin`, below the limit of all kinds together."""
        return cls(cache_dir() / kind, limit_of(cache_dir()))

    def path(self, key: str) -> Path:
        """Where the entry of `key` (hexadecimal, from `key_of`) lies once it was put."""
        return self.root / key[:2] / f"{key}.entry"

    def get(self, key: str) -> Entry | None:
        """The entry of `key`; None when there is none, or when the file is not whole."""
        path = self.path(key)
        try:
            entry = _unpack(path.read_bytes())
        except OSError:
            return None
        touch(path)
        return entry

    def put(self, key: str, entry: Entry) -> bool:
        """Store `entry` whole or not at all, and say which; the last of several writers wins."""
        content = _pack(entry)
        try:
            _write(self.path(key), content)
        except OSError as error:
            _warn_once(self.root, error.strerror or str(error))
            return False
        self._written(key, len(content))
        return True

    def folder(self, key: str, build: Callable[[Path], object]) -> Path | None:
        """The folder of `key`, which `build` fills where there is none; None where the cache cannot be written.

        It appears whole or not at all, and the first of several writers wins. Raises what `build` raises.
        """
        path = self.path(key).with_suffix(".folder")
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = Path(tempfile.mkdtemp(dir=path.parent, suffix=".partial"))
            except OSError as error:
                _warn_once(self.root, error.strerror or str(error))
                return None
            _publish(partial, path, build)
            self._written(key, size(path))
        touch(path)
        return path

    def _written(self, key: str, nbytes: int) -> None:
        if self.limit:
            self.limit.written(key, nbytes)

    def size(self) -> Footprint:
        sizes = [path.stat().st_size for path in self._files("*.entry")]
        return Footprint(len(sizes), sum(sizes))

    def clear(self) -> Footprint:
        """Remove every entry and folder, and what killed writers left; returns what entries held. Other files stay."""
        held = self.size()
        for pattern in ("*.entry", "*.folder", "*.partial"):
            for path in list(self._files(pattern)):
                remove(path)
        return held

    def _files(self, pattern: str) -> Iterator[Path]:
        return self.root.glob(f"??/{pattern}")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
        partial = Path(file.name)
        try:
            file.write(content)
            file.close()
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _publish(partial: Path, path: Path, build: Callable[[Path], object]) -> None:
    try:
        build(partial)
        with suppress(OSError):  # somebody else was first
            partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _pack(entry: Entry) -> bytes:
    metadata = json.dumps(dict(entry.metadata), sort_keys=True).encode()
    body = entry.data + metadata
    return body + _FOOTER.pack(len(entry.data), len(metadata), sha256(body).digest(), _MAGIC)


def _unpack(content: bytes) -> Entry | None:
    if len(content) < _FOOTER.size:
        return None
    body = content[: -_FOOTER.size]
    data_bytes, metadata_bytes, digest, magic = _FOOTER.unpack_from(content, len(body))
    whole = magic == _MAGIC and data_bytes + metadata_bytes == len(body) and sha256(body).digest() == digest
    return Entry(body[:data_bytes], json.loads(body[data_bytes:])) if whole else None


@cache
def _warn_once(root: Path, reason: str) -> None:
    text = f"cannot write to the cache at {root} ({reason}): working without it; TUNER_CACHE_DIR names another folder"
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def limit_of(folder: Path) -> Limit:
    """The limit of the user's caches: `TUNER_CACHE_LIMIT` gigabytes. Raises UsageError for what is no number."""
    text = os.environ.get(VARIABLE) or str(_DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < 1e9:
        raise UsageError(f"{VARIABLE} is {text!r}: give gigabytes, such as 0.5 (0 is no limit)")
    return Limit(folder, int(gigabytes * 1e9))


def touch(path: Path) -> None:
    """Note that an entry is used now."""
    with suppress(OSError):  # a cache that cannot be written is not swept either
        os.utime(path)


def remove(path: Path) -> None:
    """Remove an entry, or a folder with all that it holds; what another process removed already is fine."""
    with suppress(OSError):
        if path.is_dir():
            path = path.rename(path.with_suffix(f".{os.getpid()}.partial"))  # gone for readers at once
            shutil.rmtree(path)
        else:
            path.unlink()


def size(path: Path) -> int:
    """Bytes of an entry, or of all that a folder holds."""
    return sum(each.stat().st_size for each in (path.rglob("*") if path.is_dir() else (path,)))
