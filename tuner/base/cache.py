"""Files that processes of one user share: for each key a checksummed entry, or a folder with a manifest.

An entry is the data, then its metadata as JSON, then a footer with their lengths and checksum. The data come first,
so that a cached shared library can be loaded from the entry's file. What is cached is executed: nothing is read that
another user could have written.
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

_FOOTER = struct.Struct("<QQ32s8s")  # bytes of data, bytes of metadata, SHA-256 of both, magic
_MAGIC = b"tuner-c1"
VARIABLE = "TUNER_CACHE_LIMIT"
_DEFAULT_GB = 4.0
_SWEEPS = 16  # on average, while the number of bytes written equals the limit
_KEPT = 1 - 2 / _SWEEPS  # of the limit, after a sweep
_IN_USE_S = 600.0  # an entry used within this time may still be open in another process
_MANIFEST = "manifest.json"  # in a folder: path → size and SHA-256 of every other file
_verified: set[tuple[Path, int]] = set()  # folders, with their inodes, whose manifest held in this process


@dataclass(frozen=True, slots=True)
class CacheEntry:
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
    """`TUNER_CACHE_DIR`, or the user's cache folder; a temporary one where the home folder is unknown."""
    if named := os.environ.get("TUNER_CACHE_DIR"):
        return Path(named)
    with suppress(RuntimeError):
        folder = Path(user_cache_dir("tuner"))
        if folder.is_absolute():  # before its version 4.14 platformdirs says ~ where there is no home
            return folder
    return spare("tuner")


def safe_folder(kind: str) -> Path:
    """The folder of `kind` in `cache_dir()`, made if possible; one below the temporary folder, with one warning, where
    another user could change what is in it.
    """
    top = cache_dir()
    if why := _distrusted(top) or _distrusted(top / kind):
        private = spare("tuner-private")
        _warn_of_others(top, why, private)
        top = private
    with suppress(OSError):  # a write there reports the error
        make_folder(top / kind)
    return top / kind


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, writable by nobody else whatever the umask. Raises OSError."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)


def _distrusted(path: Path) -> str:
    """Why another user may have written a file or folder, or may change it; empty if none but this user and root can.

    A link is followed only if it belongs to one of these. Access control lists are not read.
    """
    try:
        link, info = path.lstat(), path.stat()
    except OSError:
        return ""  # there is nothing to trust
    if stranger := {link.st_uid, info.st_uid} - {0, os.geteuid()}:
        return f"{path} belongs to user {min(stranger)}"
    return f"{path} can be written by others" if info.st_mode & 0o022 else ""


def spare(name: str) -> Path:
    """A temporary folder for each user, which processes share; a new one where that name is another user's."""
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    mine = folder.lstat().st_uid == os.getuid() and folder.is_dir() and not _distrusted(folder)
    return folder if mine else _own(folder.name)


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

    A cache never fails: what cannot be read, or could be another user's, is a miss, and what cannot be written is
    dropped with one warning. When the caches under one limit are full, the least recently used entries are removed, but
    none that was used within the last minutes.
    """

    root: Path
    limit: Limit | None = None

    @classmethod
    def of(cls, kind: str) -> "Cache":
        """The user's cache of `kind`, such as `cubin`, below the limit of all kinds together."""
        root = safe_folder(kind)
        return cls(root, limit_of(root.parent))

    def path(self, key: str) -> Path:
        """Where the entry of `key` (hexadecimal, from `key_of`) lies once it was put."""
        return self.root / key[:2] / f"{key}.entry"

    def get(self, key: str) -> CacheEntry | None:
        """The entry of `key`; None when there is none, or when the file is not whole."""
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
        """Store `entry` whole or not at all, and say which; the last of several writers wins."""
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
        """The folder of `key`, which `build` fills where there is none, or one whose manifest does not hold; None where
        the cache cannot be written.

        It appears whole or not at all, and the first of several writers wins. Raises what `build` raises.
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
        """Make the folder for what has a key. Raises OSError if that cannot be, or is another user's."""
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
        """Remove every entry and folder, and what killed writers left; returns what entries held. Other files stay."""
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
        for made in partial.rglob("*"):
            made.chmod(stat.S_IMODE(made.stat().st_mode) & ~0o022)  # whatever the umask
        (partial / _MANIFEST).write_text(json.dumps(_manifest(partial)))
        with suppress(OSError):  # another process was first
            partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _manifest(folder: Path) -> dict[str, list[int | str]]:
    """The size and SHA-256 of every file. Raises OSError for what is no regular file, or could be another user's."""
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
    """Whether a folder is there, nobody else's, and holds what its manifest says, which is read once a process."""
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
    text = f"the cache at {folder} is not used, since {why}: kernels are kept in {private}; make it yours alone (`chmod"
    warnings.warn(f"{text} -R go-w {folder}`), or name another by TUNER_CACHE_DIR", RuntimeWarning, stacklevel=4)


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
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else (path,)))
