"""Tests of a user's operators as torch operators."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.base.assets import ROOT
from tuner.cli.commands.new import write

pytest.importorskip("torch")

USE = """if True:
    import torch, tuner.torch
    y = torch.ops.tuner.mine(torch.zeros(3, 256, dtype=torch.float16))
    assert torch.allclose(y.float().sum(1), torch.ones(3), atol=1e-2)
    assert tuner.torch.schema(tuner.operators.load("mine")) == "mine(Tensor x) -> Tensor"
    assert not hasattr(torch.ops.tuner, "broken")
"""

GRADIENTS = """if True:
    import torch, tuner.torch
    def given():
        torch.manual_seed(0)
        return [torch.randn(5, 4).requires_grad_() for _ in "xb"]
    def loss(x, b):
        y = torch.ops.tuner.square(x, b)
        return (y * torch.arange(20.0).view(5, 4)).sum()
    for each in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        x, b = given()
        each(x, b).backward()
        assert torch.allclose(x.grad, 2 * x * torch.arange(20.0).view(5, 4))
        assert torch.equal(b.grad, torch.arange(20.0).view(5, 4))  # b is no operand of the backward call
"""
REFUSED = """if True:
    import torch, tuner.torch
    x, b = (torch.randn(5, 4).requires_grad_() for _ in "xb")
    torch.ops.tuner.square(x, b.detach()).sum().backward()
    try:
        torch.ops.tuner.square(x, b)
    except tuner.errors.InputError as error:
        print(error)
"""
DECLARED = 'Gradient("slopes", upstream={"y": "grad_y"}, gradients={"x": "grad_x"})'


def used(code: str, folder: Path, db: Path) -> "subprocess.CompletedProcess[str]":
    """What a process says that runs `code` with the operators of a folder."""
    here = {**os.environ, "TUNER_OPERATORS": str(folder), "TUNER_DB": str(db)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=here, check=False)


def differentiable(place: Path, declared: str) -> Path:
    """A folder with square and slopes, of which square says `declared` of its gradients."""
    for name in ("square", "slopes"):
        write(name, place / name, ROOT / "tests" / "support" / "differentiable" / name)
    result = (place / "square" / "operator.py").read_text()
    assert DECLARED in result
    (place / "square" / "operator.py").write_text(result.replace(DECLARED, declared))
    return place


def test_gradients_are_those_of_the_operator_that_is_declared_for_them(tmp_path: Path) -> None:
    done = used(GRADIENTS, differentiable(tmp_path / "own", DECLARED), tmp_path / "tuner.db")
    assert done.returncode == 0, done.stderr


def test_a_tensor_that_is_said_to_have_no_gradient_is_refused_where_it_requires_one(tmp_path: Path) -> None:
    declared = DECLARED.replace(")", ', no_gradient={"b": "a constant"})')
    done = used(REFUSED, differentiable(tmp_path / "own", declared), tmp_path / "tuner.db")
    assert done.returncode == 0, done.stderr
    assert "square has no gradient with b (a constant): call under torch.no_grad()" in done.stdout


def test_gradients_that_do_not_fit_are_warned_of_and_tensors_that_need_them_refused(tmp_path: Path) -> None:
    done = used(GRADIENTS, differentiable(tmp_path / "own", 'Gradient("slopes")'), tmp_path / "tuner.db")
    assert "torch.ops.tuner.square has no gradient: square/operator.py: gradient dy is not a parameter" in done.stderr
    assert "requires grad" in done.stderr.splitlines()[-1]


def test_one_that_works_is_registered_and_one_that_is_broken_is_warned_of(tmp_path: Path) -> None:
    write("mine", tmp_path / "mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "operator.py").write_text("OPERATOR = 7\n")
    done = used(USE, tmp_path, tmp_path / "tuner.db")
    assert done.returncode == 0, done.stderr
    assert "there is no torch.ops.tuner.broken: broken/operator.py must define OPERATOR" in done.stderr
