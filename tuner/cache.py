"""Files that any process may write and every process may trust: one checksummed entry a key.

An entry is the data, then its metadata as JSON, then a footer with their lengths and checksum. The data come first,
so a cached shared library can be loaded from the entry's own file.
"""

import json
import os
import struct
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_dir

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
    """`TUNER_CACHE_DIR`, or the user's cache folder."""
    return Path(os.environ.get("TUNER_CACHE_DIR") or user_cache_dir("tuner"))


def key_of(*parts: str) -> str:
    """A key that changes with any of the texts that decide an entry."""
    return sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Cache:
    """Entries of one kind in a folder. Safe for any number of processes, and when any of them is killed.

    A cache never fails: what cannot be read is a miss, and what cannot be written is dropped with one warning.
    """

    root: Path

    @classmethod
    def of(cls, kind: str) -> "Cache":
        """The user's cache of `kind`, such as `cubin`."""
        return cls(cache_dir() / kind)

    def path(self, key: str) -> Path:
        """Where the entry of `key` (hexadecimal, from `key_of`) lies once it was put."""
        return self.root / key[:2] / f"{key}.entry"

    def get(self, key: str) -> Entry | None:
        """The entry of `key`; None when there is none, or when the file is not whole."""
        try:
            return _unpack(self.path(key).read_bytes())
        except OSError:
            return None

    def put(self, key: str, entry: Entry) -> bool:
        """Store `entry` whole or not at all, and say which; the last of several writers wins."""
        try:
            _write(self.path(key), _pack(entry))
        except OSError as error:
            _warn_once(self.root, error.strerror or str(error))
            return False
        return True

    def size(self) -> Footprint:
        sizes = [path.stat().st_size for path in self._files("*.entry")]
        return Footprint(len(sizes), sum(sizes))

    def clear(self) -> Footprint:
        """Remove every entry, and what killed writers left; returns what was held. Other files stay."""
        held = self.size()
        for path in [*self._files("*.entry"), *self._files("*.partial")]:
            path.unlink(missing_ok=True)
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
