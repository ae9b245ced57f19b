"""The check of a config on the emulator: what is no finding of a single run."""

import shutil
from pathlib import Path

import pytest

from tuner import operators
from tuner.arch import ARCHES
from tuner.check import Job, check
from tuner.operator import to_fields

FOLDER = Path(__file__).parent / "operators" / "row_norm"


def test_a_kernel_whose_bits_depend_on_the_order_of_threads_is_no_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "unsteady", ignore=shutil.ignore_patterns("__pycache__"))
    _edit(folder / "operator.py", 'name="row_norm"', 'name="unsteady"')
    _edit(folder / "two_pass.cu.jinja", "squares[row] = sum;", "squares[row] = 0;")
    turn = "float const turn = atomicAdd(squares, 1.0f);"
    _edit(folder / "two_pass.cu.jinja", "float const root = sqrtf(squares[row] / kWidth", _ROOT.format(turn=turn))
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    operator, implementation = operators.load("unsteady"), operators.implementation("unsteady", "two_pass")
    config = implementation.default(problem := operator.problem(), ARCHES["sm_90a"])
    verdict = check(Job("unsteady", "two_pass", to_fields(problem), to_fields(config)))
    assert all(error.ok for error in verdict.errors), verdict.errors
    assert verdict.findings == ("y: other bits in another order of threads",)


_ROOT = """{turn}
  float sum = turn * 3e-7f;
  for (int i = 0; i < kWidth; ++i) sum += to_float(x[row * x_rows_stride + i]) * to_float(x[row * x_rows_stride + i]);
  float const root = sqrtf(sum / kWidth"""


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
