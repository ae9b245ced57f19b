"""Tests of benchmarks/inventory.py on a small part of its grid."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tuner import arch, operators
from tuner.base.assets import ROOT
from tuner.spec.dtype import DType


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])


@pytest.fixture
def inventory() -> Any:
    return import_module("inventory")


@pytest.fixture
def lines() -> Any:
    return import_module("inventory_line")


@pytest.fixture
def table() -> Any:
    return import_module("inventory_table").table


def run(inventory: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["inventory.py", *arguments])
    status: int = inventory.main()
    return status


def line(lines: Any, problem: str, gpu: str = "H200", **compiled: float) -> Any:
    """One on which these implementations have these costs."""
    standings = tuple(
        lines.Standing(name, cost, (), compiled=cost, oracle=name == "naive") for name, cost in compiled.items()
    )
    return lines.Line("kda", gpu, problem, "", standings, done=True)


def row(table: Any, comparisons: list[Any], name: str) -> list[str]:
    """The cells of an implementation of kda."""
    text = next(line for line in table(comparisons) if line.startswith(f"| `kda/{name}`"))
    return [cell.strip() for cell in text.strip("|").split(" | ")]


def test_somebody_serves_every_problem_of_the_grid_on_every_gpu(inventory: Any) -> None:
    assert set(inventory.PROBLEMS) == {name for name in operators.names() if not name.startswith("own_")}
    for name, problems in inventory.PROBLEMS.items():
        for problem in problems:
            for gpu in inventory.GPUS:
                result, target = inventory._problem(name, problem), arch.gpu(gpu).arch
                assert any(
                    implementation.refusal(result, target) is None for implementation in operators.implementations(name)
                )


def test_every_implementation_meets_a_problem_that_it_serves(inventory: Any) -> None:
    for name, problems in inventory.PROBLEMS.items():
        for implementation in operators.implementations(name):
            assert any(operators.serves(implementation, inventory._problem(name, problem)) for problem in problems), (
                implementation.name
            )


def test_all_that_serve_a_problem_are_ranked_and_their_configs_are_of_their_spaces(inventory: Any) -> None:
    ranking = inventory._ranked(inventory.Cell("kda", "A100", "2 × 16 heads of 64, safe", ""), 2)
    names = {standing.implementation for standing in ranking.standings}
    assert names == {"fused", "naive", "prep_scan", "recurrent", "segmented", "segmented_fused", "segmented_once"}
    for standing in ranking.standings:
        for config in standing.configs:
            instance = inventory._instance(ranking, standing, config)
            space = instance.implementation.space(instance.problem, arch.gpu("A100").arch)
            assert space.refusal(instance.config) is None


def test_nobody_near_is_no_race(inventory: Any) -> None:
    ranking = inventory._ranked(inventory.Cell("mla_decode", "A100", "16 heads, batch of 4", ""), 2)
    assert ranking.done and {standing.implementation for standing in ranking.standings} == {"naive", "split_keys"}


def test_a_call_takes_up_what_another_left(
    inventory: Any, lines: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "inventory.jsonl"
    asked = ["--operator", "linear_attention", "--gpu", "A100", "--problem", "16 heads of 64, 256 tokens"]
    asked += ["--tries", "1", "--workers", "1"]
    assert run(inventory, monkeypatch, *asked, "--out", str(out), "--seconds", "0") == 1
    assert not out.exists()
    assert run(inventory, monkeypatch, *asked, "--out", str(out)) == 0
    ((_, result),) = lines.read(out).items()
    assert result.done
    assert all(candidate.compiled for candidate in result.ranked()[:2])
    left = out.read_text()
    out.write_text(left + left[:100])  # a call that was killed
    assert run(inventory, monkeypatch, *asked, "--out", str(out)) == 0
    assert out.read_text() == left + left[:100]
    assert "1 of 1 problems on GPUs are ranked, 1 of them" in capsys.readouterr().out


def test_what_other_code_predicted_is_not_taken_up(inventory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = inventory._code("kda", "64 heads", 2)
    monkeypatch.setattr(inventory, "MODEL", "predicted/0")
    assert before not in (inventory._code("kda", "64 heads", 2), inventory._code("kda", "fp16", 2))


def test_verdicts(lines: Any, table: Any) -> None:
    results = [
        line(lines, "a", naive=900, fused=100, segmented=102, recurrent=150),
        line(lines, "b", naive=900, fused=100, segmented=99, recurrent=101),
        line(lines, "c", "A100", naive=900, fused=100, segmented=110),
    ]
    fused = "`kda/fused`", "3", "2", "2", "6.0%, 10%", "1.0%, 1.0%", "everywhere: a (1); c (1)", "wins"
    assert row(table, results, "fused") == list(fused)
    assert row(table, results, "segmented")[2::5] == ["1", "within 3%"]
    assert row(table, results, "segmented")[6] == "sm_90a: b (1)"
    assert row(table, results, "recurrent")[2::5] == ["0", "wins nowhere"]
    assert "| `kda/naive` | 3 | | | | | | oracle |" in table(results)


def test_the_only_one_beside_the_oracle_wins_however_little_it_leads(lines: Any, table: Any) -> None:
    results = [line(lines, "a", naive=101, recurrent=100), line(lines, "b", naive=100)]
    assert row(table, results, "recurrent")[-1] == "wins"
    assert "- only `kda/recurrent` beside the oracle: everywhere: a (1)" in table(results)
    assert "- only `kda/naive`: everywhere: b (1)" in table(results)


def test_without_one_the_next_wins(lines: Any, table: Any) -> None:
    results = [line(lines, "a", naive=900, fused=100, segmented=150, recurrent=200)]
    left = [result.without(["kda/fused", "mla_decode/segmented"]) for result in results]
    assert row(table, left, "segmented")[2:5] == ["1", "1", "33%, 33%"]


def test_who_was_not_compiled_is_compared_by_what_is_declared(lines: Any) -> None:
    first = lines.Standing("fused", 100.0, (), compiled=150.0)
    far = lines.Standing("recurrent", 140.0, ())
    result = lines.Line("kda", "H200", "a", "", (far, first))
    assert result.ranked() == (first, far)
    assert lines.margin(first, far) == pytest.approx(0.4)


def test_names_say_what_no_other_problem_of_an_operator_is(inventory: Any) -> None:
    for name, problems in inventory.PROBLEMS.items():
        assert len({inventory._problem(name, problem) for problem in problems}) == len(problems)


def test_dtypes_of_the_grid_are_all_that_an_operator_takes(inventory: Any) -> None:
    for name, problems in inventory.PROBLEMS.items():
        taken = {inventory._problem(name, problem).dtype for problem in problems}
        assert DType.BF16 in taken and DType.FP32 in taken
