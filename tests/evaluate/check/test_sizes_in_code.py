"""Problems whose sizes are in the code: edges by the folder's own words, a sample of blocks, or a refusal at once."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.claims import compiled_to_ptx
from tuner import operators
from tuner.arch import gpu
from tuner.backends import ptx
from tuner.cli.app import build
from tuner.compiler.render import render
from tuner.evaluate.check.checker import Job, check
from tuner.evaluate.check.compare import compare
from tuner.evaluate.check.declarations import broken
from tuner.evaluate.check.edges import edges, on_one_code, too_large
from tuner.evaluate.check.on_ptx import compiled
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance
from tuner.spec.tolerance import Tolerance

FOLDER = Path(__file__).parents[2] / "support" / "kernels_as_they_are"
H200 = gpu("H200")


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(operators.VARIABLE, "")
    operators.add_folder(FOLDER)
    yield
    operators.__path__.remove(str(FOLDER))


def instance() -> Instance:
    operator = operators.load("transposed")
    return Instance.default(operator, operators.implementation("transposed", "macros"), operator.problem(), H200.arch)


def compiled_of(one: Instance) -> dict[str, ptx.Entry]:
    entries = ptx.parse(compiled_to_ptx(render(one), "sm_90a"))
    assert entries
    return entries


def sampled(one: Instance, *blocks: int) -> Instance:
    def plan(problem: object, config: object) -> object:
        whole = one.implementation.plan(problem, config)
        return replace(whole, launches=(replace(whole.launches[0], sample=blocks),))

    return replace(one, implementation=replace(one.implementation, plan=plan))


def test_static_sizes_are_made_small_and_each_edge_has_its_own_code() -> None:
    verdict = check(Job(instance().fields(), arch="sm_90a"))
    assert verdict.ok, verdict.reason
    assert "rows=131 columns=2 normal" in " ".join(verdict.checks)
    assert not broken(instance(), H200)


def test_a_device_judges_the_problem_itself_where_edges_are_other_code() -> None:
    one = instance()
    result = on_one_code(one.problem, edges(one.operator, one.problem))
    assert [edge.problem for edge in result] == [one.problem]


def test_what_is_too_large_for_the_cpu_is_refused_at_once_with_what_to_write() -> None:
    one = instance()
    whole = replace(one, operator=replace(one.operator, tails=lambda problem: (problem,)))
    reason = too_large(whole)
    assert "rows=4096 columns=2048 normal has 8,388,608 threads" in reason
    assert "static(…, size=True)" in reason and "Launch(…, sample=" in reason
    assert not too_large(sampled(whole, 0, 5))


def test_of_a_sample_only_those_blocks_run_and_only_what_they_wrote_is_seen() -> None:
    one = sampled(instance(), 0, 256, 131071)
    entries = compiled(Job(one.fields(), arch="sm_90a"), H200.arch)
    assert not isinstance(entries, Failed)
    arrays = one.operator.inputs(one.problem, np.random.default_rng(0), "normal")
    outputs, run = ptx.run(one, entries, arrays, sampled=True)
    assert not run.fault
    assert (~outputs["y"].mask).sum() == 3 * 64
    exact = one.operator.reference(one.problem, arrays)["y"]
    assert compare("y", outputs["y"], exact, exact, Tolerance(0.0)).ok
    wrong = exact.copy()
    wrong[0, 0] += 1  # in the first block
    assert not compare("y", outputs["y"], wrong, wrong, Tolerance(1e-6)).ok


def test_a_call_of_an_application_runs_every_block_whatever_a_check_samples() -> None:
    operator = operators.load("transposed")
    small = sampled(replace(instance(), problem=operator.problem(rows=24, columns=17)), 0)
    entries = compiled_of(small)
    arrays = operator.inputs(small.problem, np.random.default_rng(0), "normal")
    outputs, _ = ptx.run(small, entries, arrays)
    assert not isinstance(outputs["y"], np.ma.MaskedArray)
    np.testing.assert_array_equal(outputs["y"], arrays["x"].T)


@pytest.mark.parametrize("command", ["search", "verify"])
def test_commands_refuse_whole_problems_at_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER / "transposed", tmp_path / "macro_sizes", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / "macro_sizes").rglob("*.py"):
        text = path.read_text().replace(", size=True", "")
        path.write_text(text.replace('name="transposed"', 'name="macro_sizes"'))
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    with operators.folder(tmp_path):
        monkeypatch.setenv(operators.VARIABLE, str(tmp_path))  # worker processes find it there
        done = CliRunner().invoke(build(), [command, "macro_sizes", "--gpu", "A100", "--check-seconds", "60"])
    assert done.exit_code != 0
    assert "static(…, size=True) where they are macros" in done.output


def test_where_nothing_is_both_written_and_known_nothing_is_right() -> None:
    written = np.ma.masked_array(np.ones(4), [False, False, True, True])
    known = np.ma.masked_array(np.ones(4), [True, True, False, False])
    error = compare("y", written, known, np.ones(4), Tolerance(1.0))
    assert not error.ok and "no element was both computed and known" in error.reason
