"""Tests of wrong input: one message that names what is wrong, and the exit code 2."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.app import build

FILES = {
    "latin.csv": b"\xff\xfe\x00bad",
    "empty.csv": b"",
    "nan.csv": b"seq_q\nNaN\n",
    "twice.csv": b"seq_q,seq_q\n1,2\n",
    "broken.json": b"{",
}
SEARCH = ["search", "flash_attention", "--gpu", "sm_90a"]
EXPLAIN = ["explain", "flash_attention", "--gpu", "sm_90a"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    monkeypatch.setenv("COLUMNS", "80")
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "flash_attention", "--gpu", ""], "unknown GPU ''"),
        ([*EXPLAIN, "--gpu", "sm_80"], "--gpu is given twice: give it once"),
        ([*EXPLAIN, "--implementation", ""], "no implementation ''"),
        (["verify", "flash_attention", "--gpu", "sm_90a", "--implementation", ""], "no implementation ''"),
        ([*EXPLAIN, "--head-dim", "NaN"], "--head-dim 'NaN': give a whole number"),
        ([*EXPLAIN, "--head-dim", "-8"], "head_dim -8: flash_attention supports 8 to 256 in steps of 8"),
        ([*EXPLAIN, "--dtype", "float99"], "--dtype 'float99': known: bf16, fp16, fp32"),
        ([*EXPLAIN, "--seq-q", "64.."], "--seq-q 64..: give LO..HI with both ends"),
        ([*EXPLAIN, "--seq-q", "128..64"], "--seq-q 128..64: give LO..HI with 0 < LO <= HI"),
        ([*EXPLAIN, "--seq-q", ""], "--seq-q '': give at least one value"),
        ([*EXPLAIN, "--config", "BM=16", "--config", "BM=32"], "--config sets BM twice: give one value"),
        ([*EXPLAIN, "--config", "BM=nan"], "--config BM=nan: not a whole number"),
        ([*SEARCH, "--problems", "latin.csv"], "cannot read the problems in latin.csv: it is not text in UTF-8"),
        ([*SEARCH, "--problems", "empty.csv"], "empty.csv names no problem"),
        ([*SEARCH, "--problems", "folder"], "cannot read the problems in folder: Is a directory"),
        ([*SEARCH, "--problems", "nan.csv"], "nan.csv, line 2: --seq-q 'NaN': give a whole number"),
        ([*SEARCH, "--problems", "twice.csv"], "twice.csv, line 1: there are several columns 'seq_q'"),
        ([*SEARCH, "--problems", "broken.json"], "broken.json, line 1: not JSON"),
        (["replay", "latin.csv"], "cannot read latin.csv: it is not text in UTF-8"),
        (["bundle", "out.zip", "--db", "none.db"], "cannot read the database none.db: there is no such file"),
        (["show", "--db", "folder"], "cannot use the database folder: it is a folder"),
        (["show", "--db", "mysql://x/y"], "cannot use a mysql:// URL"),
    ],
    ids=" ".join,
)
def test_a_wrong_word_is_one_line_that_names_it(words: list[str], message: str, folder: Path) -> None:
    done = CliRunner().invoke(build(), words)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and message in line
    assert str(folder) not in line


@pytest.mark.parametrize("word", ["0", "1e3", "nan"])
def test_a_number_of_the_wrong_kind_names_its_option(word: str, folder: Path) -> None:
    done = CliRunner().invoke(build(), [*SEARCH, "--budget", word])
    assert done.exit_code == 2 and "--budget" in done.stderr and folder.is_dir()
