"""Tests of peers of a user's operator: a peers.py in its folder, as templates/README.md describes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.own_operators import own_operator
from tests.support.simulated_device import Simulation
from tuner import bench, operators
from tuner.arch import gpu
from tuner.base.assets import TEMPLATES
from tuner.bench import peers
from tuner.bench.timing_process import WrongError, judged
from tuner.errors import TemplateError
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.device_check import cases
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.spec.instance import Instance
from tuner.spec.problem import to_fields
from tuner.store.records import Snapshot

H200 = gpu("H200")
SHOWN = re.search(r"```python\n([^`]*PEERS = [^`]*)```", (TEMPLATES / "README.md").read_text())
assert SHOWN is not None
EXAMPLE = SHOWN[1]


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An operator with the peers.py of the documentation."""
    monkeypatch.setenv(operators.VARIABLE, str(tmp_path))  # worker processes find it there
    with own_operator(tmp_path) as result:
        (tmp_path / result / "peers.py").write_text(EXAMPLE)
        yield result


def code(name: str) -> Code:
    operator, block = operators.load(name), operators.implementation(name, "block")
    return Code(Instance.default(operator, block, operator.problem(rows=64), H200.arch).fields(), b"")


def test_a_forecast_names_them(name: str) -> None:
    operator = operators.load(name)
    assert bench.forecast(operator, operator.problem(), H200, Snapshot.load([])).peers == ("torch softmax",)


def test_a_comparison_has_a_row_for_them(name: str) -> None:
    comparison = bench.compare(code(name), Simulation("H200"), MeasurementPolicy(rounds=3))
    assert {row.name: row.state for row in comparison.rows}[
        "torch softmax"
    ] == "absent"  # no device is simulated for them


def test_they_compute_what_the_operator_defines(name: str) -> None:
    pytest.importorskip("torch")
    (peer,) = peers.of(name)
    edges = cases(operators.load(name), to_fields(operators.load(name).problem(rows=64)), every=False)
    assert judged(peer, edges, "cpu") in [edge.name for edge in edges]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("softmax(tensors", "square(tensors", "y.*RMSE"),
        ('{"y"', '{"o"', "it returns o, but only y can be checked"),
        ('{"y": torch.softmax(tensors["x"], -1)}', "{}", "it returns nothing, but only y can be checked"),
    ],
)
def test_one_that_is_wrong_is_told(name: str, tmp_path: Path, old: str, new: str, message: str) -> None:
    pytest.importorskip("torch")
    call = EXAMPLE.replace(", -1)", ")") if "square" in new else EXAMPLE
    assert old in call
    (tmp_path / name / "peers.py").write_text(call.replace(old, new))
    (peer,) = peers.of(name)
    with pytest.raises(WrongError, match=message):
        judged(peer, cases(operators.load(name), to_fields(operators.load(name).problem(rows=64)), every=False), "cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torchh\n", r"peers\.py cannot be imported: ModuleNotFoundError: No module .* \(peers\.py, line 1\)"),
        ("x = 1\nPEERS = (\n", r"peers\.py cannot be imported: SyntaxError: .*line 2"),
        (EXAMPLE.replace("PEERS =", "PEER ="), r"peers\.py must define PEERS, a tuple of Peer"),
        (EXAMPLE.replace("_softmax),)", "_softmax))"), r"peers\.py must define PEERS, a tuple of Peer"),
    ],
)
def test_a_file_that_is_wrong_is_told_before_anything_is_raced(
    name: str, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / name / "peers.py").write_text(text)
    for raced in (lambda: peers.of(name), lambda: bench.compare(code(name), Simulation("H200"))):
        with pytest.raises(TemplateError, match=f"{name}/{message}"):
            raced()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0", r"failed: ZeroDivisionError: .* \(peers\.py, line \d+\)"),
        ("7", r"returned 7: return a Context, or None"),
        ('peers.Context("flash_attention", problem)', r"returned a Problem for flash_attention: return a tuner\.oper"),
    ],
)
def test_a_context_that_is_wrong_is_told(name: str, tmp_path: Path, body: str, message: str) -> None:
    source = f"from tuner.bench import peers\n{EXAMPLE}\n\ndef context(problem):\n    return {body}\n"
    (tmp_path / name / "peers.py").write_text(source)
    operator = operators.load(name)
    with pytest.raises(TemplateError, match=rf"{name}/peers\.py: context\(problem\) {message}"):
        bench.context(operator, operator.problem())


def test_without_the_file_there_are_none(tmp_path: Path) -> None:
    with own_operator(tmp_path) as name:
        assert peers.of(name) == ()
        assert bench.context(operators.load(name), None) is None


def test_what_is_judged_may_not_import_it_for_verdicts_do_not_hear_of_it(tmp_path: Path) -> None:
    with own_operator(tmp_path, ("operator.py", "ARGUMENTS = (", "from . import peers\n\nARGUMENTS = (")) as name:
        (tmp_path / name / "peers.py").write_text(EXAMPLE)
        for _ in range(2):
            with pytest.raises(TemplateError, match=rf"{name}/operator\.py imports peers\.py"):
                operators.load(name)
