"""Signatures of records: ed25519 over a record's line, so that a reader need not trust the file that contains it."""

import base64
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import MachineError, UsageError
from tuner.results.record import TuningRecord
from tuner.store import record_lines

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VARIABLE = "TUNER_TRUST"
_SCHEME = "ed25519"
_SUFFIXES = (".pub", ".pem")  # suffixes of public keys in a folder
_GENERATE = "`ssh-keygen -t ed25519 -N '' -f FILE` makes a pair"


def signed(record: TuningRecord, key: "Ed25519PrivateKey") -> TuningRecord:
    """Return the record with a signature by a key from `private_key`, which replaces an earlier signature."""
    return replace(record, signature=signature_of(_signed_bytes(record), key))


def signature_of(data: bytes, key: "Ed25519PrivateKey") -> str:
    """Return the scheme, the public key and the signature, in the form that `TrustedKeys.refusal_of` reads."""
    public = key.public_key().public_bytes_raw()
    return ":".join((_SCHEME, _text(public), _text(key.sign(data))))


def private_key(path: Path) -> "Ed25519PrivateKey":
    """Read a private ed25519 key from an OpenSSH or PEM file without a passphrase. Raises UsageError."""
    serialization, ed25519, exceptions = _library()
    data = _read(path)
    load = serialization.load_ssh_private_key if b"OPENSSH" in data else serialization.load_pem_private_key
    try:
        key = load(data, None)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
        raise UsageError(f"{path}: no private key without a passphrase ({error}): {_GENERATE}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"{path}: not an ed25519 key: {_GENERATE}")
    signing_key: Ed25519PrivateKey = key
    return signing_key


class TrustedKeys:
    """The public keys whose signatures a reader accepts."""

    def __init__(self, keys: frozenset[bytes]) -> None:
        self._keys = keys

    def refusal(self, record: TuningRecord) -> str | None:
        """Return why a record is not trusted; None if it has a valid signature of a trusted key."""
        return self.refusal_of(_signed_bytes(record), record.signature)

    def refusal_of(self, data: bytes, signed: str) -> str | None:
        """Return why data with a signature by `signature_of` is not trusted; None if the signature is valid and its key
        trusted.
        """
        if not signed:
            return f"nobody signed it, and {VARIABLE} is set"
        scheme, *parts = signed.split(":")
        try:
            public, signature = (base64.b64decode(part, validate=True) for part in parts)
        except ValueError:
            return "its signature is malformed"
        if scheme != _SCHEME or public not in self._keys:
            return f"it is signed by a key that {VARIABLE} does not name"
        _, ed25519, exceptions = _library()
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
        except exceptions.InvalidSignature:
            return "it has changed since it was signed"
        return None


def trusted_keys() -> TrustedKeys | None:
    """Read the keys that `TUNER_TRUST` names: a file, or the `.pub` and `.pem` files of a folder. None without
    `TUNER_TRUST`.

    Raises UsageError if there is no ed25519 key, and MachineError without the library.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser()
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES) if path.is_dir() else [path]
    keys = frozenset(key for file in files for key in _public_keys(file))
    if not keys:
        raise UsageError(f"{VARIABLE}={named}: no public ed25519 key is there: {_GENERATE}")
    return TrustedKeys(keys)


def _public_keys(file: Path) -> list[bytes]:
    serialization, ed25519, exceptions = _library()
    data = _read(file)
    try:
        if b"-----BEGIN" in data:
            keys = [serialization.load_pem_public_key(data)]
        else:
            lines_ = [line.strip() for line in data.splitlines()]
            keys = [serialization.load_ssh_public_key(line) for line in lines_ if line and not line.startswith(b"#")]
    except (ValueError, exceptions.UnsupportedAlgorithm) as error:
        raise UsageError(f"{VARIABLE}: {file} is no file of public keys ({error}): {_GENERATE}") from error
    return [key.public_bytes_raw() for key in keys if isinstance(key, ed25519.Ed25519PublicKey)]


def _signed_bytes(record: TuningRecord) -> bytes:
    return record_lines.to_line(replace(record, signature="")).encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror or error}") from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _library() -> tuple[Any, Any, Any]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise MachineError("signatures of records need cryptography: pip install 'kerntune[sign]'") from error
    return serialization, ed25519, exceptions
