"""On-disk caches that one user's processes share: each key has a checksummed entry or a folder with a manifest.

An entry is the data, then its metadata as JSON, then a footer with their lengths and checksum. The data come first, so
that a cached shared library can be loaded directly from the entry's file. Cached content is executed, so files that
another user could have written are never read.
"""

import json
import os
import shutil
import stat
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_dir

from tuner.errors import UsageError

_FOOTER = struct.Struct("<QQ32s8s")  # length of data, length of metadata, SHA-256 of both, magic
_MAGIC = b"tuner-c1"
VARIABLE = "TUNER_CACHE_LIMIT"
_DEFAULT_GB = 4.0
_SWEEPS = 16  # expected number of sweeps while the bytes written equal the limit
_KEPT = 1 - 2 / _SWEEPS  # fraction of the limit that a sweep leaves
_IN_USE_S = 600.0  # an entry used within this time may be open in another process
_MANIFEST = "manifest.json"  # in a folder: path → size and SHA-256 of every other file
_verified: set[tuple[Path, int]] = set()  # folders (with inode) whose manifest this process has verified


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The content stored under a key."""

    data: bytes
    metadata: Mapping[str, str | float] = field(default_factory=dict)


class Footprint(NamedTuple):
    """Disk usage of a cache."""

    entries: int
    bytes: int


class _Item(NamedTuple):
    used: float  # seconds since the epoch
    nbytes: int
    path: Path  # a file, or a folder that is removed as a whole


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on the total bytes of the caches under `folder`; 0 means no bound.

    The bound is approximate: writers do not count each other's bytes. A write of n bytes triggers a sweep with
    probability 16 n / `nbytes`, drawn from its key, which is uniformly distributed. Entries used in the last ten
    minutes are never removed.
    """

    folder: Path
    nbytes: int

    def written(self, key: str, nbytes: int) -> None:
        """Record a write; called after each one with the entry's hexadecimal key."""
        if self.nbytes and int(key[:8], 16) / 16**8 < _SWEEPS * nbytes / self.nbytes:
            self.sweep()

    def sweep(self) -> int:
        """Remove the least recently used entries until an eighth of the limit is free; return the bytes removed.

        Several processes may sweep at the same time.
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
        """Return the total bytes of the caches."""
        return sum(item.nbytes for item in self._items())

    def _items(self) -> Iterator[_Item]:
        for path in self.folder.glob("*/??/*"):
            if path.suffix in (".entry", ".folder", ".partial"):
                with suppress(OSError):  # another process removed it first
                    yield _Item(path.stat().st_mtime, size(path), path)


def cache_dir() -> Path:
    """Return `TUNER_CACHE_DIR` or the user's cache folder; a temporary folder if the home folder is unknown."""
    if named := os.environ.get("TUNER_CACHE_DIR"):
        return Path(named)
    with suppress(RuntimeError):
        folder = Path(user_cache_dir("tuner"))
        if folder.is_absolute():  # platformdirs before 4.14 returns ~ if there is no home folder
            return folder
    return spare("tuner")


def safe_folder(kind: str) -> Path:
    """Return the folder of `kind` in `cache_dir()`, created if possible.

    If another user could change its contents, warn once and return one below the temporary folder instead.
    """
    top = cache_dir()
    if why := _distrusted(top) or _distrusted(top / kind):
        private = spare("tuner-private")
        _warn_of_others(top, why, private)
        top = private
    with suppress(OSError):  # a later write reports the error
        make_folder(top / kind)
    return top / kind


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, writable only by this user regardless of the umask. Raises OSError."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)


def _distrusted(path: Path) -> str:
    """Return why another user may have written or could change a path; empty if only this user and root can.

    A link is followed only if this user or root owns it. A POSIX access control list that lets another user write sets
    the group's mode bits.
    """
    try:
        link, info = path.lstat(), path.stat()
    except OSError:
        return ""  # the path does not exist
    if stranger := {link.st_uid, info.st_uid} - {0, os.geteuid()}:
        return f"{path} belongs to user {min(stranger)}"
    return f"{path} can be written by others" if info.st_mode & 0o022 else ""


def spare(name: str) -> Path:
    """Return a temporary folder that one user's processes share; a new one if another user owns that name."""
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    mine = folder.lstat().st_uid == os.getuid() and folder.is_dir() and not _distrusted(folder)
    return folder if mine else _own(folder.name)


@cache
def _own(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-"))


def key_of(*parts: str) -> str:
    """Return a key that changes with any of the texts that determine an entry."""
    return sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def digest_of(root: Path, files: Iterable[Path]) -> str:
    """Return a digest of the files below `root`; it changes with any file's relative path or content."""
    digest = sha256()
    for path in sorted(set(files)):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Cache:
    """Entries of one kind in a folder. Safe for concurrent processes, and if any of them is killed.

    A cache never fails: an entry that cannot be read, or that another user could have written, is a miss, and an entry
    that cannot be written is dropped with one warning. When the caches under one limit are full, the least recently
    used entries are removed, except those used within the last minutes.
    """

    root: Path
    limit: Limit | None = None

    @classmethod
    def of(cls, kind: str) -> "Cache":
        """Return the user's cache of `kind`, such as `cubin`, under the limit that all kinds share."""
        root = safe_folder(kind)
        return cls(root, limit_of(root.parent))

    def path(self, key: str) -> Path:
        """Return the path of the entry of `key` (hexadecimal, from `key_of`)."""
        return self.root / key[:2] / f"{key}.entry"

    def get(self, key: str) -> CacheEntry | None:
        """Return the entry of `key`; None if it is missing or corrupt."""
        path = self.path(key)
        if _distrusted(path.parent) or _distrusted(path):
            return None
        try:
            entry = _unpack(path.read_bytes())
        except OSError:
            return None
        touch(path)
        return entry

    def put(self, key: str, entry: CacheEntry) -> bool:
        """Store `entry` atomically and return whether it was stored; the last of several writers wins."""
        content = _pack(entry)
        try:
            self._open(key)
            _write(self.path(key), content)
        except OSError as error:
            _warn_once(self.root, error.strerror or str(error))
            return False
        self._written(key, len(content))
        return True

    def folder(self, key: str, build: Callable[[Path], object]) -> Path | None:
        """Return the folder of `key`, or None if the cache cannot be written.

        `build` fills the folder if it is missing or if its manifest does not match. The folder appears atomically, and
        the first of several writers wins. Propagates any exception from `build`.
        """
        path = self.path(key).with_suffix(".folder")
        try:
            self._open(key)
            if not (holds := _holds(path)):
                remove(path)
                partial = Path(tempfile.mkdtemp(dir=path.parent, suffix=".partial"))
        except OSError as error:
            _warn_once(self.root, error.strerror or str(error))
            return None
        if not holds:
            _publish(partial, path, build)
            self._written(key, size(path))
            if not _holds(path):
                _warn_once(self.root, f"{path} cannot be replaced")
                return None
        touch(path)
        return path

    def _open(self, key: str) -> None:
        """Create the folder for the key's entry. Raises OSError if that fails or another user owns it."""
        folder = self.path(key).parent
        make_folder(folder)
        if why := _distrusted(folder):
            raise PermissionError(0, why)

    def _written(self, key: str, nbytes: int) -> None:
        if self.limit:
            self.limit.written(key, nbytes)

    def size(self) -> Footprint:
        sizes = [path.stat().st_size for path in self._files("*.entry")]
        return Footprint(len(sizes), sum(sizes))

    def clear(self) -> Footprint:
        """Remove every entry, every folder and the leftovers of killed writers; return the size of the entries. Keeps
        other files.
        """
        held = self.size()
        for pattern in ("*.entry", "*.folder", "*.partial"):
            for path in list(self._files(pattern)):
                remove(path)
        return held

    def _files(self, pattern: str) -> Iterator[Path]:
        return self.root.glob(f"??/{pattern}")


def _write(path: Path, content: bytes) -> None:
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
        (partial / _MANIFEST).touch()
        for member in partial.rglob("*"):
            member.chmod(stat.S_IMODE(member.stat().st_mode) & ~0o022)  # regardless of the umask
        (partial / _MANIFEST).write_text(json.dumps(_manifest(partial)))
        with suppress(OSError):  # another process published it first
            partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _manifest(folder: Path) -> dict[str, list[int | str]]:
    """Return the size and SHA-256 of every file. Raises OSError for irregular files and for files that another user may
    change.
    """
    entries: dict[str, list[int | str]] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _distrusted(path):
            raise PermissionError(0, f"{path} is not trusted")
        if stat.S_ISREG(mode) and path != folder / _MANIFEST:
            with path.open("rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
            entries[path.relative_to(folder).as_posix()] = [path.stat().st_size, digest]
    return entries


def _holds(folder: Path) -> bool:
    """Return whether a folder exists, belongs to this user and matches its manifest, which is read once per process."""
    try:
        key = folder, folder.lstat().st_ino
        if _distrusted(folder) or folder.is_symlink():
            return False
        if key not in _verified and json.loads((folder / _MANIFEST).read_bytes()) != _manifest(folder):
            return False
    except (OSError, ValueError):
        return False
    _verified.add(key)
    return True


def _pack(entry: CacheEntry) -> bytes:
    metadata = json.dumps(dict(entry.metadata), sort_keys=True).encode()
    body = entry.data + metadata
    return body + _FOOTER.pack(len(entry.data), len(metadata), sha256(body).digest(), _MAGIC)


def _unpack(content: bytes) -> CacheEntry | None:
    if len(content) < _FOOTER.size:
        return None
    body = content[: -_FOOTER.size]
    data_bytes, metadata_bytes, digest, magic = _FOOTER.unpack_from(content, len(body))
    whole = magic == _MAGIC and data_bytes + metadata_bytes == len(body) and sha256(body).digest() == digest
    return CacheEntry(body[:data_bytes], json.loads(body[data_bytes:])) if whole else None


@cache
def _warn_of_others(folder: Path, why: str, private: Path) -> None:
    text = f"the cache at {folder} is not used: {why}: kernels are cached in {private}; restrict it (`chmod"
    warnings.warn(f"{text} -R go-w {folder}`), or set TUNER_CACHE_DIR to another folder", RuntimeWarning, stacklevel=4)


@cache
def _warn_once(root: Path, reason: str) -> None:
    text = f"cannot write to the cache at {root} ({reason}): set TUNER_CACHE_DIR to another folder"
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def limit_of(folder: Path) -> Limit:
    """Return the limit of the user's caches, from `TUNER_CACHE_LIMIT` in gigabytes. Raises UsageError if it is not a
    number.
    """
    text = os.environ.get(VARIABLE) or str(_DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < 1e9:
        raise UsageError(f"{VARIABLE} is {text!r}: give gigabytes, such as 0.5 (0 is no limit)")
    return Limit(folder, int(gigabytes * 1e9))


def touch(path: Path) -> None:
    """Mark an entry as used now."""
    with suppress(OSError):  # a cache that cannot be written is not swept either
        os.utime(path)


def remove(path: Path) -> None:
    """Remove an entry, or a folder with its contents; ignore a path that another process already removed."""
    with suppress(OSError):
        if path.is_dir():
            path = path.rename(path.with_suffix(f".{os.getpid()}.partial"))  # hides it from readers at once
            shutil.rmtree(path)
        else:
            path.unlink()


def size(path: Path) -> int:
    """Return the bytes of an entry, or of all files in a folder."""
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else (path,)))
