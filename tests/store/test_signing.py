"""Tests of signed records: with TUNER_TRUST only those with a trusted signature are served."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.store_factory import PROBLEM, record
from tuner.cli.app import build
from tuner.errors import UsageError
from tuner.results.record import TuningRecord
from tuner.store import record_lines, signing
from tuner.store.records import Query, Snapshot
from tuner.store.sql import Store

serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
QUERY = Query("scan", PROBLEM, "H200", "sm_90a", ("causal", "dtype"))  # type: ignore[arg-type]


def key_pair(folder: Path, name: str = "mine", kind: str = "ssh") -> Path:
    """The private key's file; the public key is in the same folder."""
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = {
        "ssh": (serialization.PrivateFormat.OpenSSH, serialization.PublicFormat.OpenSSH),
        "pem": (serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo),
    }[kind]
    encoding = serialization.Encoding.OpenSSH if kind == "ssh" else serialization.Encoding.PEM
    text = key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    (folder / name).write_bytes(text)
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(encoding, public))
    return folder / name


def served(folder: Path, stored: TuningRecord) -> TuningRecord | None:
    record_lines.write(folder / "records.jsonl", [stored])
    match = Snapshot.load([folder / "records.jsonl"]).find(QUERY, lambda _: None)
    return match and match.record


@pytest.mark.parametrize("kind", ["ssh", "pem"])
def test_a_record_signed_by_a_trusted_key_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    signed = signing.signed(record(), signing.private_key(key_pair(tmp_path, kind=kind)))
    for trusted in ("mine.pub", ""):  # a file, or a folder of them
        monkeypatch.setenv("TUNER_TRUST", str(tmp_path / trusted))
        assert served(tmp_path, signed) == signed


def test_what_is_unsigned_signed_by_another_key_or_changed_is_named_and_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = (signing.private_key(key_pair(tmp_path, name)) for name in ("mine", "other"))
    monkeypatch.setenv("TUNER_TRUST", str(tmp_path / "mine.pub"))
    good = signing.signed(record(), key)
    scheme, public, signature = good.signature.split(":")
    for bad, why in (
        (record(), "nobody signed it"),
        (signing.signed(record(), other), "signed by a key that TUNER_TRUST does not name"),
        (replace(good, config={"BT": 32, "swizzle": True}), "it has changed since it was signed"),
        (replace(good, margin=0.5), "it has changed since it was signed"),
        (replace(good, signature=f"{scheme}:{public}"), "malformed"),
        (replace(good, signature=f"{scheme}:{public}:é"), "malformed"),
        (replace(good, signature=f"ed448:{public}:{signature}"), "does not name"),
    ):
        assert served(tmp_path, bad) is None
        (listed,) = Snapshot.load([tmp_path / "records.jsonl"]).explain(QUERY, lambda _: None)
        assert why in listed.why
    assert served(tmp_path, good) == good


def test_without_trusted_keys_signatures_are_not_asked_for(tmp_path: Path) -> None:
    assert served(tmp_path, record()) == record()
    assert served(tmp_path, replace(record(), signature="whatever")) is not None


def test_a_signature_survives_the_database_and_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = signing.signed(record(), signing.private_key(key_pair(tmp_path)))
    record_lines.write(tmp_path / "one.jsonl", [signed])
    with Store.open(tmp_path / "tuner.db") as store:
        store.import_jsonl(tmp_path / "one.jsonl")
        store.export_jsonl(tmp_path / "two.jsonl")
    assert (tmp_path / "one.jsonl").read_text() == (tmp_path / "two.jsonl").read_text()
    monkeypatch.setenv("TUNER_TRUST", str(tmp_path / "mine.pub"))
    match = Snapshot.load([tmp_path / "tuner.db"]).find(QUERY, lambda _: None)
    assert match is not None and match.record == signed


def test_show_signs_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        store.promote(record())
    command = ["show", "--db", str(tmp_path / "tuner.db"), "--out", str(tmp_path / "signed.jsonl")]
    done = CliRunner().invoke(build(), [*command, "--sign", str(key_pair(tmp_path))])
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("TUNER_TRUST", str(tmp_path / "mine.pub"))
    assert Snapshot.load([tmp_path / "signed.jsonl"]).find(QUERY, lambda _: None) is not None


def test_a_key_of_ssh_keygen_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "id")]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        pytest.skip("needs ssh-keygen")
    monkeypatch.setenv("TUNER_TRUST", str(tmp_path / "id.pub"))
    signed = signing.signed(record(), signing.private_key(tmp_path / "id"))
    assert served(tmp_path, signed) == signed


@pytest.mark.parametrize("trusted", ["absent", "empty.pub", "words.pub", "."])
def test_keys_that_cannot_be_read_are_an_error_and_not_trust_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: str
) -> None:
    (tmp_path / "empty.pub").write_text("")
    (tmp_path / "words.pub").write_text("trust me")
    monkeypatch.setenv("TUNER_TRUST", str(tmp_path / trusted))
    with pytest.raises(UsageError, match="key"):
        Snapshot.load([])
    with pytest.raises(UsageError, match="private key"):
        signing.private_key(tmp_path / "words.pub")
