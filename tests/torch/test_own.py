"""Operators of one's own as torch's, where torch is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli.commands.new import write

pytest.importorskip("torch")

USE = """if True:
    import torch, tuner.torch
    y = torch.ops.tuner.mine(torch.zeros(3, 256, dtype=torch.float16))
    assert torch.allclose(y.float().sum(1), torch.ones(3), atol=1e-2)
    assert tuner.torch.schema(tuner.operators.load("mine")) == "mine(Tensor x) -> Tensor"
    assert not hasattr(torch.ops.tuner, "broken")
"""


def test_one_that_works_is_registered_and_one_that_is_broken_is_warned_of(tmp_path: Path) -> None:
    write("mine", tmp_path / "mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "operator.py").write_text("OPERATOR = 7\n")
    here = {**os.environ, "TUNER_OPERATORS": str(tmp_path), "TUNER_DB": str(tmp_path / "tuner.db")}
    done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, env=here, check=False)
    assert done.returncode == 0, done.stderr
    assert "there is no torch.ops.tuner.broken: broken/operator.py must define OPERATOR" in done.stderr
