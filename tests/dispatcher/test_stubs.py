"""Tests of the type stubs: they match the operators, and type checkers report misspelt names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner import operators
from tuner.base.assets import ROOT
from tuner.dispatcher import stubs

SHIPPED = ["flash_attention", "kda", "linear_attention"]


def test_the_stubs_are_written_from_the_operators(tmp_path: Path) -> None:
    names = sorted(path.parent.name for path in (ROOT / "templates").glob("*/operator.py"))
    for path in stubs.write(names, tmp_path):
        current = ROOT / "tuner" / path.relative_to(tmp_path)
        assert current.read_text() == path.read_text(), "run: python -m tuner.dispatcher.stubs"


def mypy(code: str, folder: Path, mypypath: Path = ROOT) -> str:
    (folder / "program.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "program.py"]
    environment = {**os.environ, "MYPYPATH": str(mypypath)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_type_checker_reports_a_misspelt_operator_argument_or_type(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = """\
import numpy as np
from tuner import dispatcher

q = np.zeros((1, 4, 2, 16), np.float16)
o, lse = dispatcher.flash_attention(q, q, q, causal=True)
reveal_type(o)
dispatcher.flash_atention(q, q, q)
dispatcher.flash_attention(q, q, q, causl=True)
dispatcher.flash_attention(q, q, q, causal="yes")
dispatcher.explain("flash_attention", q, q, q).implementation.upper()
"""
    lines = [line for line in mypy(program, tmp_path).splitlines() if line.startswith("program.py")]
    errors = [line for line in lines if ": error: " in line]
    assert [line.split(":")[1] for line in errors] == ["7", "8", "9"], lines
    assert "ndarray" in lines[0] and "flash_atention" in errors[0] and "causl" in errors[1]


@pytest.mark.usefixtures("own_folder")
def test_operators_of_ones_own_are_in_a_stub_package() -> None:
    names = operators.names()
    assert set(SHIPPED) < set(names) and "row_norm" in names
    text = stubs.dispatcher_stub(names)
    assert "def row_norm(" in text
    assert "def row_norm(" in stubs.jax_stub(names)
    compile(text, "stub", "exec")
