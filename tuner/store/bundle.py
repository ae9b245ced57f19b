"""Bundles: records and the machine code of their kernels in one zip file, for machines without a compiler.

A bundle is untrusted data and is never unpacked to files. Names, counts and sizes are checked against the manifest and
against fixed limits before anything is read, and each member is checked against its digest when it is read. The
signature covers the manifest, which contains the digests of all members.
"""

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import __version__
from tuner.base.cache import CacheEntry
from tuner.base.canonical_json import encode
from tuner.base.fields import check_printable
from tuner.base.replacement import replacing
from tuner.errors import StoreError
from tuner.results.record import TuningRecord
from tuner.store import record_lines, signing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = 1
SUFFIX = ".zip"
RECORDS, MANIFEST, SIGNATURE = "records.jsonl", "manifest.json", "manifest.sig"
_MEMBER = re.compile(r"records\.jsonl|cubins/[0-9a-f]{64}\.cubin")
_MOST_MEMBERS = 100_000
_MOST_BYTES = {RECORDS: 256 << 20, MANIFEST: 64 << 20, SIGNATURE: 1 << 10}
_MOST_CUBIN = 64 << 20
_EPOCH = (2020, 1, 1, 0, 0, 0)  # fixed date of every member, so that equal contents give equal files


@dataclass(frozen=True, slots=True)
class _Member:
    nbytes: int
    digest: str
    about: Mapping[str, str | float]  # of a cubin: its compiler and log


def write(
    path: Path,
    records: Iterable[TuningRecord],
    cubins: Mapping[str, CacheEntry],
    key: "Ed25519PrivateKey | None" = None,
) -> None:
    """Write a bundle atomically. `cubins` are cache entries by key; `key` signs the records and the manifest.

    Raises StoreError if it cannot be written.
    """
    signed = [signing.signed(record, key) if key else record for record in records]
    parts: dict[str, tuple[bytes, dict[str, Any]]] = {
        RECORDS: ("".join(f"{record_lines.to_line(record)}\n" for record in signed).encode(), {})
    }
    parts |= {f"cubins/{name}.cubin": (entry.data, dict(entry.metadata)) for name, entry in cubins.items()}
    members = {
        name: {"about": about, "bytes": len(data), "sha256": sha256(data).hexdigest()}
        for name, (data, about) in parts.items()
    }
    manifest = encode({"format": FORMAT, "members": members, "tuner": __version__}).encode()
    files = {MANIFEST: manifest, **{name: data for name, (data, _) in parts.items()}}
    if key:
        files[SIGNATURE] = signing.signature_of(manifest, key).encode()
    try:
        with replacing(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(info, data)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


# What zipfile raises for a file that is not a zip archive, a ValueError for names that are not UTF-8.
_NO_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    KeyError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
)


class Bundle:
    """An open bundle. Its manifest has been checked; its members are checked when they are read."""

    def __init__(self, path: Path, members: Mapping[str, _Member]) -> None:
        self.path, self._members = path, members

    @classmethod
    def open(cls, path: Path) -> "Bundle":
        """Open a bundle. Raises StoreError if the file is no bundle or, with `TUNER_TRUST`, has no valid trusted
        signature.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
                names = [info.filename for info in infos]
                if len(names) != len(set(names)) or len(names) > _MOST_MEMBERS:
                    raise StoreError(f"{path} has too many members, or two of one name")
                sizes = {info.filename: info.file_size for info in infos}
                manifest = _read(archive, MANIFEST, _MOST_BYTES[MANIFEST])
                signature = _read(archive, SIGNATURE, _MOST_BYTES[SIGNATURE]) if SIGNATURE in sizes else b""
        except _NO_ZIP as error:
            raise StoreError(f"{path} is no bundle: {error}") from error
        except OSError as error:
            raise StoreError(f"cannot read the bundle {path}: {error.strerror or error}") from error
        if (trusted := signing.trusted_keys()) and (
            why := trusted.refusal_of(manifest, signature.decode("ascii", "replace"))
        ):
            raise StoreError(f"the bundle {path} is not used: {why}")
        members = _members(path, manifest)
        if unlisted := set(sizes) - set(members) - {MANIFEST, SIGNATURE}:
            raise StoreError(f"{path} has the member {min(unlisted)!r}, which its manifest does not list")
        for name, member in members.items():
            if sizes.get(name) != member.nbytes:
                raise StoreError(f"{path}: its member {name} is missing, or has another size than its manifest says")
        return cls(path, members)

    def records(self) -> str:
        """Return the records as lines."""
        try:
            return self._data(RECORDS).decode()
        except UnicodeDecodeError as error:
            raise StoreError(f"{self.path}: its records are no text") from error

    def cubin(self, key: str) -> CacheEntry | None:
        """Return the cache entry of a cubin; None if it is not in the bundle. Raises StoreError if it was modified."""
        name = f"cubins/{key}.cubin"
        member = self._members.get(name)
        return CacheEntry(self._data(name), dict(member.about)) if member else None

    def __len__(self) -> int:
        """Return the number of cubins."""
        return len(self._members) - 1

    def _data(self, name: str) -> bytes:
        member = self._members[name]
        try:
            with zipfile.ZipFile(self.path) as archive:
                data = _read(archive, name, member.nbytes)
        except _NO_ZIP as error:
            raise StoreError(f"{self.path}: its member {name} cannot be read: {error}") from error
        except OSError as error:
            raise StoreError(f"cannot read the bundle {self.path}: {error.strerror or error}") from error
        if len(data) != member.nbytes or sha256(data).hexdigest() != member.digest:
            raise StoreError(f"{self.path}: its member {name} has changed: its digest does not match")
        return data


def _read(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read a member of at most `most` bytes, whatever its header claims. Raises BadZipFile if it is larger."""
    with archive.open(name) as member:
        data = member.read(most + 1)
    if len(data) > most:
        raise zipfile.BadZipFile(f"{name} has more than {most:,} bytes")
    return data


def _members(path: Path, manifest: bytes) -> dict[str, _Member]:
    try:
        data = json.loads(manifest)
        check_printable(data["tuner"])
        if data["format"] != FORMAT:
            raise StoreError(f"{path} is a bundle of format {data['format']!r}; this program reads {FORMAT}: update it")
        members = {name: _member(name, part) for name, part in data["members"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is no bundle: its manifest is wrong ({type(error).__name__}: {error})") from error
    if RECORDS not in members:
        raise StoreError(f"{path} is no bundle: it has no records")
    return members


def _member(name: str, part: Any) -> _Member:
    nbytes, digest, about = part["bytes"], part["sha256"], part["about"]
    if not _MEMBER.fullmatch(name):
        raise ValueError(f"a member is called {name!r}")
    if type(nbytes) is not int or not 0 <= nbytes <= _MOST_BYTES.get(name, _MOST_CUBIN):
        raise ValueError(f"{name} has {nbytes!r} bytes")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"{name} has no digest")
    if not isinstance(about, dict) or not all(isinstance(value, str | int | float) for value in about.values()):
        raise TypeError(f"{name} is described by {about!r}")
    return _Member(nbytes, digest, about)
