"""Files that any process may write and every process may trust: one checksummed entry, or one folder, a key.

An entry is the data, then its metadata as JSON, then a footer with their lengths and checksum. The data come first,
so a cached shared library can be loaded from the entry's own file.
"""

import json
import os
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_dir

from tuner.cache_limit import Limit, limit_of, remove, size, touch

_FOOTER = struct.Struct("<QQ32s8s")  # bytes of data, bytes of metadata, SHA-256 of both, magic
_MAGIC = b"tuner-c1"


@dataclass(frozen=True, slots=True)
class Entry:
    """What was stored under a key."""

    data: bytes
    metadata: Mapping[str, str | float] = field(default_factory=dict)


class Footprint(NamedTuple):
    """What a cache holds on disk."""

    entries: int
    bytes: int


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
