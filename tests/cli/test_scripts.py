"""Tests of the promises to scripts in tuner/cli/README.md."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tuner.base.assets import ROOT
from tuner.cli.app import build
from tuner.store import record_lines
from tuner.store.sql import Store

README = (ROOT / "tuner" / "cli" / "README.md").read_text()
SMALL = ("flash_attention", "--gpu", "sm_80", "--head-dim", "16", "--seq-q", "128")
RECORD = ["identity", "config", "evidence", "verdict", "resources", "prediction", "measurement"]
RECORD += ["margin", "tried", "tuner", "created"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(build(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the record of one small search."""
    folder = tmp_path_factory.mktemp("scripts")
    done = run("search", *SMALL, "--implementation", "mma_sync", "--budget", "2", "--workers", "1", "--db",
               folder / "tuner.db", "--report", folder / "r.html", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    (folder / "search.json").write_text(done.stdout)
    return folder / "tuner.db"


def promised(command: str) -> set[str]:
    (row,) = re.findall(rf"^\| `{command}` \| (.*) \|$", README, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


def keys(document: Mapping[str, Any], lists: tuple[str, ...] = ()) -> set[str]:
    """Yield a document's keys, including those of objects in its lists."""
    return set(document) | {key for name in lists for entry in document[name] for key in entry}


def test_search_has_the_keys_that_are_promised(db: Path) -> None:
    document = json.loads((db.parent / "search.json").read_text())
    assert keys(document, ("searches",)) == promised("search")
    assert list(document["searches"][0]["record"]) == RECORD
    assert all(f"`{name}`" in README for name in RECORD)


@pytest.mark.parametrize("command", ["explain", "verify", "inspect", "render", "warmup", "show", "doctor"])
def test_documents_have_the_keys_that_are_promised(db: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", str(db))
    arguments = () if command in ("show", "doctor") else SMALL
    done = run(command, *arguments, "--json", *(("--ptx",) if command == "verify" else ()))
    assert done.exit_code == 0, done.output
    assert keys(json.loads(done.stdout), ("calls",) if command == "warmup" else ()) == promised(command)


def test_a_standalone_document_names_its_files(db: Path, tmp_path: Path) -> None:
    done = run("render", *SMALL, "--db", db, "--standalone", tmp_path / "out", "--json")
    document = json.loads(done.stdout)
    assert set(document) == promised("render") - {"digest", "text", "headers"} | promised("render --standalone")
    assert [Path(path) for path in document["files"]] == sorted((tmp_path / "out").iterdir(), reverse=True)


@pytest.mark.parametrize("option", [("--headers",), ("--target", "host")])
def test_what_is_written_for_cpp_has_no_other_target(option: tuple[str, ...], tmp_path: Path) -> None:
    done = run("render", *SMALL, "--standalone", tmp_path / "out", *option)
    assert done.exit_code == 2 and "leave --headers and --target out" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_warmup_that_cannot_be_kept_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "file"))
    done = run("warmup", *SMALL)
    assert done.exit_code == 2 and not done.stdout
    assert re.fullmatch(
        r"error: cannot write to the cache at .*/file/cubin \(.*\): set TUNER_CACHE_DIR .*\n", done.stderr
    )


def test_a_wrong_request_ends_with_2_one_line_and_an_empty_stdout() -> None:
    done = run("verify", "flash_attention", "--head-dim", "7", "--json")
    assert done.exit_code == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_records_are_written_as_text_that_applications_read(db: Path, tmp_path: Path) -> None:
    assert run("show", "--db", db, "--out", tmp_path / "records.jsonl").exit_code == 0
    with Store.open(db) as store:
        assert list(record_lines.read(tmp_path / "records.jsonl")) == store.records()
    done = run("show", "--db", db, "--out", tmp_path / "records.txt")
    assert done.exit_code == 2 and "jsonl" in done.stderr


def test_a_warm_up_names_what_each_problem_runs(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", str(db))
    done = run("warmup", *SMALL[:-1], "128,256")
    assert done.exit_code == 0, done.output
    rows = [line for line in done.stdout.splitlines() if "mma_sync" in line]
    assert len(rows) == 2 and "record of this problem" in rows[0] and "record" in rows[1]


def test_a_report_written_again_says_why_the_search_stopped_and_how_long_it_took(db: Path) -> None:
    (search,) = json.loads((db.parent / "search.json").read_text())["searches"]
    written = json.loads(run("report", *SMALL, "--db", db, "--format", "json").stdout)["problems"][0]["search"]
    assert written["stopped"] == search["why_stopped"]
    assert 0 < written["seconds"] < search["seconds"] + 60
    assert written["budget"] == 2


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    done = run("show", "--db", tmp_path)
    assert done.exit_code == 2 and not done.stdout
    assert done.stderr == f"error: cannot use the database {tmp_path}: it is a folder; name a file in it\n"


def test_a_database_that_is_damaged_is_one_line(db: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "tuner.db"
    with Store.open(db) as store:
        store.studies()
    data = bytearray(db.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    damaged.write_bytes(data)
    done = run("report", *SMALL, "--db", damaged)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: cannot use the database ")


def test_a_report_that_would_not_fit_is_refused_before_the_search(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tuner", "search", *SMALL, "--budget", "2", "--db", str(tmp_path / "tuner.db")]
    limited = f"ulimit -f 1000; exec {shlex.join([*words, '--report', str(tmp_path / 'r.html')])}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"cannot write the report to {tmp_path / 'r.html'}: File too large" in done.stderr
    assert not (tmp_path / "tuner.db").exists()


@pytest.mark.parametrize("command", [("search", "flash_attention"), ("show",), ("doctor",), ("gpus",)])
def test_help_shows_flags_without_a_type_and_an_example(command: tuple[str, ...]) -> None:
    text = run(*command, "--help").stdout
    assert "<bool>" not in text
    assert f"tuner {' '.join(command)}" in text.partition("Examples")[2]
