"""The README's examples, executed as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner import operators
from tuner.base.assets import ROOT
from tuner.cli.app import build

TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0] == program]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


QUICK = ("doctor", "explain", "inspect", "operators", "render", "show")  # they search and verify nothing


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "every"])
def test_commands_run_in_the_order_in_which_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, every: bool
) -> None:
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    monkeypatch.chdir(tmp_path)
    for line in commands("tuner"):
        if not every and line[0] not in QUICK:
            continue
        # Of several implementations each gets tries; two are what there is to replay.
        few = ["--budget", "8"] if "--effort" in line else ["--budget", "2", "--workers", "1"]
        tries = few if line[0] == "search" else []
        report = ["--report", str(tmp_path / "r.html")] if line[0] == "search" else []
        out = ["--out", str(tmp_path / "r.html")] if line[0] == "report" else []
        page = ["--out", str(tmp_path / "b.html")] if line[0] == "bench" else []
        done = CliRunner().invoke(build(), [*line, *tries, *report, *out, *page])
        assert done.exit_code == 0, f"tuner {shlex.join(line)}\n{done.output}"


def test_make_has_the_targets_that_are_named() -> None:
    named = {line[0] for line in commands("make") if line}
    makefile = (ROOT / "Makefile").read_text()
    assert named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_the_table_of_operators_names_each_and_its_implementations() -> None:
    rows = {line[1]: line[0] for line in re.findall(r"^(\| \[`(\w+)`\].*)$", TEXT, re.MULTILINE)}
    assert set(rows) == {path.parent.name for path in (ROOT / "templates").glob("*/operator.py")}
    for name, row in rows.items():
        assert all(f"`{each.name}`" in row for each in operators.implementations(name)), name
