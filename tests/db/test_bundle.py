"""Tests of bundles: they serve without a compiler or a database, and modified ones are refused by name."""

import json
import random
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.arriving import records
from tests.support.cupy_double import Driver, asarray, driver
from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import emulator
from tuner.backends.emulator.build import runtime_library
from tuner.base.canonical_json import encode
from tuner.cli.app import build
from tuner.compiler import nvrtc, nvrtc_library
from tuner.compiler.render import render
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import MachineError, StoreError
from tuner.spec.instance import Instance
from tuner.store import bundle, record_lines
from tuner.store.bundle import MANIFEST, RECORDS, SIGNATURE, Bundle

__all__ = ["driver"]  # a fixture

pytestmark = pytest.mark.usefixtures("own_folder")
X = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
WEIGHT = np.linspace(0.5, 2, 32, dtype=np.float32)


def instance(name: str = "two_pass") -> Instance:
    operator, implementation = operators.load("row_norm"), operators.implementation("row_norm", name)
    problem = operator.problem(width=32, rows=5)
    return Instance(operator, implementation, problem, implementation.space(problem, ARCHES["sm_90a"])[0])


def command(*words: str | Path) -> str:
    done = CliRunner().invoke(build(), [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one record for an H200."""
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CACHE_DIR", str(folder / "cache"))
        record_lines.write(folder / "records.jsonl", records(instance(), target="H200", arch="sm_90a"))
        output = command("bundle", folder / "out.zip", "--db", folder / "records.jsonl", "--json")
    assert json.loads(output) == {"bundle": str(folder / "out.zip"), "records": 1, "cubins": 1, "left_out": []}
    return folder / "out.zip"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    """A machine with a GPU, and with no compiler, no database and an empty cache."""
    runtime_library()
    driver.know(emulator.build(render(instance(), "host"), checked=False))
    for name in ("TUNER_DB", "TUNER_TRUST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))

    def missing() -> None:
        raise MachineError("compiling needs the NVRTC library (it is hidden)")

    monkeypatch.setattr(nvrtc_library, "_library", missing)
    nvrtc.toolkit.cache_clear()
    return driver


def test_a_bundle_serves_calls_without_a_compiler_and_a_database(
    made: Path, machine: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_BUNDLE", str(made))
    at = Dispatcher.from_environment()
    explanation = at.explain("row_norm", asarray(X), asarray(WEIGHT))
    assert (explanation.implementation, explanation.why) == ("two_pass", "record of this problem on H200")
    assert explanation.compiler.startswith("nvrtc ") and explanation.compiler.endswith(f", in {made}")
    for rows in (5, 3):  # the record of a neighbour, too: its kernel is the same
        y, _ = at.call("row_norm", asarray(X[:rows]), asarray(WEIGHT))
        right = X[:rows] / np.sqrt((X[:rows] ** 2).mean(1, keepdims=True) + 1e-6) * WEIGHT
        assert np.allclose(y.host, right, atol=1e-5)
    assert machine.launches


@pytest.mark.usefixtures("machine")
def test_without_it_the_same_call_has_no_kernel() -> None:
    with pytest.raises(MachineError, match="it is hidden"):
        Dispatcher.from_environment().call("row_norm", asarray(X), asarray(WEIGHT))


def test_equal_records_make_equal_bundles(made: Path, tmp_path: Path) -> None:
    opened = Bundle.open(made)
    (record,) = [record_lines.from_line(line) for line in opened.records().splitlines()]
    (key,) = [name for name in zipfile.ZipFile(made).namelist() if name.startswith("cubins/")]
    entry = opened.cubin(key.removeprefix("cubins/").removesuffix(".cubin"))
    assert entry is not None and len(opened) == 1
    bundle.write(tmp_path / "again.zip", [record], {key[7:-6]: entry})
    assert (tmp_path / "again.zip").read_bytes() == made.read_bytes()


def test_a_record_of_other_source_is_left_out_by_name(tmp_path: Path) -> None:
    (record,) = records(instance(), target="H200", arch="sm_90a")
    text = record_lines.to_line(record).replace(record.identity.source, "5eed5eed5eed5eed")
    (tmp_path / "records.jsonl").write_text(text)
    done = CliRunner().invoke(build(), ["bundle", str(tmp_path / "o.zip"), "--db", str(tmp_path / "records.jsonl")])
    assert done.exit_code == 1
    assert "row_norm/two_pass on H200: its source has changed" in " ".join(done.output.split())


# ---- files that are no bundles, or were modified ----


def rebuilt(made: Path, path: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """The bundle with other members."""
    with zipfile.ZipFile(made) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def manifest(members: dict[str, bytes], **change: object) -> None:
    members[MANIFEST] = encode(json.loads(members[MANIFEST]) | change).encode()


def member(members: dict[str, bytes], name: str, **change: object) -> None:
    data = json.loads(members[MANIFEST])
    data["members"][name] = data["members"].get(name, {"about": {}, "bytes": 0, "sha256": "0" * 64}) | change
    members[MANIFEST] = encode(data).encode()


CHANGES: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "no manifest": (lambda members: members.pop(MANIFEST), "no item named 'manifest.json'"),
    "no records": (lambda members: members.pop(RECORDS), "records.jsonl is missing"),
    "a stranger": (lambda members: members.update({"../evil": b"x"}), "'../evil', which its manifest does not list"),
    "a path": (lambda members: member(members, "../evil", bytes=1), "a member is called '../evil'"),
    "an absolute path": (lambda members: member(members, "/etc/passwd"), "a member is called '/etc/passwd'"),
    "another size": (lambda members: member(members, RECORDS, bytes=7), "another size than its manifest says"),
    "a huge size": (lambda members: member(members, RECORDS, bytes=1 << 40), "1099511627776 bytes"),
    "a negative size": (lambda members: member(members, RECORDS, bytes=-1), "-1 bytes"),
    "no digest": (lambda members: member(members, RECORDS, sha256="x"), "has no digest"),
    "nested data": (lambda members: member(members, RECORDS, about={"log": ["x"]}), "is described by"),
    "a later format": (lambda members: manifest(members, format=2), "format 2; this program reads 1: update it"),
    "an escape": (lambda members: manifest(members, tuner="\x1b[2J"), "not printable"),
    "no JSON": (lambda members: members.update({MANIFEST: b"{"}), "its manifest is wrong"),
    "deep JSON": (lambda members: members.update({MANIFEST: b"[" * 10**6}), "its manifest is wrong"),
    "a list": (lambda members: members.update({MANIFEST: b"[]"}), "its manifest is wrong"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_contradicts_its_manifest_is_refused_before_anything_is_read(
    change: str, made: Path, tmp_path: Path
) -> None:
    how, why = CHANGES[change]
    with pytest.raises(StoreError) as caught:
        Bundle.open(rebuilt(made, tmp_path / "changed.zip", how))
    assert why in str(caught.value)


def test_two_members_of_one_name_are_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.zip").write_bytes(made.read_bytes())
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "twice.zip", "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(RECORDS, b"other")
    with pytest.raises(StoreError, match="two of one name"):
        Bundle.open(tmp_path / "twice.zip")


def test_a_member_of_the_same_size_and_other_content_is_refused_when_it_is_read(made: Path, tmp_path: Path) -> None:
    changed = rebuilt(made, tmp_path / "changed.zip", lambda m: m.update({RECORDS: m[RECORDS].replace(b"128", b"129")}))
    with pytest.raises(StoreError, match="its digest does not match"):
        Bundle.open(changed).records()


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(cut: float, made: Path, tmp_path: Path) -> None:
    data = made.read_bytes()
    (tmp_path / "cut.zip").write_bytes(data[: int(cut * len(data)) if cut < 1 else int(cut)])
    with pytest.raises(StoreError, match="is no bundle"):
        Bundle.open(tmp_path / "cut.zip")


def test_a_missing_bundle_is_an_error_of_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_BUNDLE", str(tmp_path / "none.zip"))
    with pytest.raises(StoreError, match=r"cannot read the bundle .*No such file"):
        Dispatcher.from_environment()


def test_machine_code_that_is_no_elf_file_is_refused(
    made: Path, machine: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Bundle.open(made)
    (record,) = [record_lines.from_line(line) for line in opened.records().splitlines()]
    (name,) = [name for name in zipfile.ZipFile(made).namelist() if name.startswith("cubins/")]
    entry = opened.cubin(name[7:-6])
    assert entry is not None
    for image in (b"", b"\x7fELF", entry.data[:200]):
        bundle.write(tmp_path / "bad.zip", [record], {name[7:-6]: type(entry)(image, entry.metadata)})
        monkeypatch.setenv("TUNER_BUNDLE", str(tmp_path / "bad.zip"))
        with pytest.raises(StoreError, match="machine code that cannot be read"):
            Dispatcher.from_environment().call("row_norm", asarray(X), asarray(WEIGHT))
    assert not machine.launches


# ---- signatures ----


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Two pairs of keys, as `ssh-keygen` writes them."""
    pytest.importorskip("cryptography", reason="no cryptography: pip install '.[sign]'")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    for name in ("ours", "theirs"):
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (tmp_path / name).write_bytes(private)
        (tmp_path / f"{name}.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return tmp_path


def test_only_bundles_that_a_trusted_key_signed_are_used(
    made: Path, machine: Driver, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (keys / "records.jsonl").write_text(Bundle.open(made).records())
    entries = {}
    for name in zipfile.ZipFile(made).namelist():
        if name.startswith("cubins/") and (entry := Bundle.open(made).cubin(name[7:-6])):
            entries[name[7:-6]] = entry
    for name in ("ours", "theirs"):
        key = bundle.signing.private_key(keys / name)
        bundle.write(keys / f"{name}.zip", record_lines.read(keys / "records.jsonl"), entries, key)
    monkeypatch.setenv("TUNER_TRUST", str(keys / "ours.pub"))

    monkeypatch.setenv("TUNER_BUNDLE", str(keys / "ours.zip"))
    at = Dispatcher.from_environment()
    assert at.explain("row_norm", asarray(X), asarray(WEIGHT)).record is not None
    at.call("row_norm", asarray(X), asarray(WEIGHT))
    assert machine.launches

    other = rebuilt(keys / "ours.zip", keys / "other.zip", lambda members: manifest(members, tuner="9.9"))
    unsigned = rebuilt(keys / "ours.zip", keys / "unsigned.zip", lambda members: members.pop(SIGNATURE))
    refused = {keys / "theirs.zip": "TUNER_TRUST does not name", other: "changed since", unsigned: "nobody signed it"}
    for path, why in refused.items():
        with pytest.raises(StoreError, match=why):
            Bundle.open(path)


def test_the_command_signs(made: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (keys / "records.jsonl").write_text(Bundle.open(made).records())
    command("bundle", keys / "out.zip", "--db", keys / "records.jsonl", "--gpu", "H200", "--sign", keys / "ours")
    monkeypatch.setenv("TUNER_TRUST", str(keys / "ours.pub"))
    (line,) = Bundle.open(keys / "out.zip").records().splitlines()
    assert record_lines.from_line(line).signature


def test_no_damage_of_an_archive_ends_in_another_error(tmp_path: Path) -> None:
    path, rng = tmp_path / "records.zip", random.Random(0)
    bundle.write(path, [], {})
    intact = path.read_bytes()
    for _ in range(500):
        damaged = bytearray(intact)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))])
        with suppress(StoreError):
            assert Bundle.open(path).records() == ""
