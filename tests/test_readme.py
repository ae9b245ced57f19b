"""The README's examples, executed as they stand."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner import operators
from tuner.cli import build

ROOT = Path(__file__).parents[1]
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


@pytest.mark.slow
def test_commands_run_in_the_order_in_which_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    monkeypatch.chdir(tmp_path)
    for line in commands("tuner"):
        report = ["--report", str(tmp_path / "r.html")] if line[0] == "search" else []
        out = ["--out", str(tmp_path / "r.html")] if line[0] == "report" else []
        page = ["--html", str(tmp_path / "b.html")] if line[0] == "bench" else []
        done = CliRunner().invoke(build(), [*line, *report, *out, *page])
        assert done.exit_code == 0, f"tuner {shlex.join(line)}\n{done.output}"


def test_make_has_the_targets_that_are_named() -> None:
    named = {line[0] for line in commands("make") if line}
    makefile = (ROOT / "Makefile").read_text()
    assert named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_the_operator_of_the_example_is_searched_and_dispatched(tmp_path: Path) -> None:
    text = (ROOT / "templates" / "README.md").read_text()
    files = re.findall(r"^`(row_softmax/[\w.]+)`:\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "row_softmax").mkdir()
    for name, content in files:
        (tmp_path / name).write_text(content)
    here = {**os.environ, "TUNER_OPERATORS": str(tmp_path), "TUNER_DB": str(tmp_path / "tuner.db")}
    options = ["--gpu", "sm_80", "--budget", "1", "--quiet", "--report", str(tmp_path / "r.html")]
    search = "from tuner.cli import main; main()", "search", "row_softmax", *options
    use = """if True:
        import numpy as np
        from tuner import dispatcher
        y = dispatcher.row_softmax(np.eye(5, 256, dtype=np.float16))
        assert abs(y.astype(float).sum(axis=1) - 1).max() < 1e-2
        assert dispatcher.explain("row_softmax", y).record
    """
    for code, *arguments in (search, (use,)):
        line = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=here, check=False)
        assert done.returncode == 0, done.stderr + done.stdout


def test_the_table_of_operators_names_each_and_its_implementations() -> None:
    rows = {line[1]: line[0] for line in re.findall(r"^(\| \[`(\w+)`\].*)$", TEXT, re.MULTILINE)}
    assert set(rows) == {path.parent.name for path in (ROOT / "templates").glob("*/operator.py")}
    for name, row in rows.items():
        assert all(f"`{each.name}`" in row for each in operators.implementations(name)), name
