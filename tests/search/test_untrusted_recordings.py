"""Tests of hostile recordings: their names and values reach no source and no terminal."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.app import build

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
