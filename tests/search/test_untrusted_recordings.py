"""Tests of hostile recordings: their names and values reach no source and no terminal."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.app import build
from tuner.errors import UsageError
from tuner.search.replay import files

ESCAPE = "\x1b]0;title\x07\x1b[2J"


def t4(name: str, value: object) -> str:
    measurement = [{"name": "time", "value": 1.0, "unit": "ms"}]
    entries = [
        {
            "configuration": {name: value if BT > 16 else type(value)(), "BT": BT},
            "measurements": measurement,
            "objectives": ["time"],
        }
        | {"times": {"runtimes": [float(BT)]}, "invalidity": "correct", "correctness": 1}
        for BT in (16, 32, 64, 128)
    ]
    return json.dumps({"schema_version": "1.0.0", "results": entries})


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [(f"mode{ESCAPE}", 1, 2), ("mode", f"fast{ESCAPE}", 0), ("__class__", 1, 2), ("import", 1, 2), ("x=1;y", 1, 2)],
)
def test_a_recording_is_replayed_or_refused_by_name(tmp_path: Path, name: str, value: object, code: int) -> None:
    (tmp_path / "space.json").write_text(t4(name, value))
    done = CliRunner().invoke(build(), ["replay", str(tmp_path / "space.json"), "--budget", "3"])
    assert done.exit_code == code, done.output
    assert "\x1b" not in done.output
    assert "space.json is no recording" in done.stderr or code == 0


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"results": ' * 50_000, f'{{"results": [{"9" * 5000}]}}', "NaN", '{"results": 3}']
)
def test_json_that_python_cannot_parse_is_no_recording(tmp_path: Path, text: str) -> None:
    (tmp_path / "space.json").write_text(text)
    done = CliRunner().invoke(build(), ["replay", str(tmp_path / "space.json")])
    assert done.exit_code == 2
    assert "space.json is not a recording" in done.stderr


def test_an_archive_that_expands_without_end_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 1000)
    (tmp_path / "space.json.gz").write_bytes(gzip.compress(b" " * 100_000))
    with pytest.raises(UsageError, match="more than 1,000 bytes"):
        files.parse(tmp_path / "space.json.gz")
