"""Tests of the check of a config on the emulator beyond the findings of a single run."""

import re
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tuner import operators
from tuner.arch import ARCHES
from tuner.base.assets import ROOT
from tuner.base.cache import Cache
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.evaluate.check import verdict_cache
from tuner.evaluate.check.checker import PLAIN, Checker, Job, check, key_of
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.evaluate.check.verdict_cache import VerdictCache, effective
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

FOLDER = ROOT / "tests" / "support" / "operators" / "row_norm"


def test_a_kernel_whose_bits_depend_on_the_order_of_threads_is_no_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "unsteady", ignore=shutil.ignore_patterns("__pycache__"))
    _edit(folder / "operator.py", 'name="row_norm"', 'name="unsteady"')
    _edit(folder / "two_pass/kernel.cu.jinja", "squares[row] = sum;", "squares[row] = 0;")
    turn = "float const turn = atomicAdd(squares, 1.0f);"
    _edit(
        folder / "two_pass/kernel.cu.jinja", "float const root = sqrtf(squares[row] / kWidth", _ROOT.format(turn=turn)
    )
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    operator, implementation = operators.load("unsteady"), operators.implementation("unsteady", "two_pass")
    config = implementation.default(problem := operator.problem(), ARCHES["sm_90a"])
    verdict = check(Job(InstanceFields("unsteady", "two_pass", to_fields(problem), to_fields(config))))
    assert all(error.ok for error in verdict.errors), verdict.errors
    assert verdict.findings == ("y: the result depends on the order of threads",)


@pytest.mark.parametrize("on_ptx", [False, True])
def test_a_kernel_that_never_ends_is_a_finding_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_ptx: bool
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "endless", ignore=shutil.ignore_patterns("__pycache__"))
    _edit(folder / "operator.py", 'name="row_norm"', 'name="endless"')
    _edit(
        folder / "two_pass/kernel.cu.jinja",
        "    sum += value * value;",
        "    sum += value * value;\n    i -= sum >= 0;",
    )
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    monkeypatch.setattr("tuner.evaluate.check.checker.most_seconds", lambda _: 0.5)
    monkeypatch.setattr("tuner.evaluate.check.on_ptx.most_seconds", lambda _: 0.5)
    operator, implementation = operators.load("endless"), operators.implementation("endless", "two_pass")
    config = implementation.default(problem := operator.problem(), ARCHES["sm_90a"])
    job = Job(InstanceFields("endless", "two_pass", to_fields(problem), to_fields(config)))
    (finding,) = (check_ptx(job, ARCHES["sm_90a"]) if on_ptx else check(job)).findings
    assert "still running after 0.5 s of CPU time" in finding
    loop = _places_of_loop(Instance(operator, implementation, problem, config))
    places = [r"line \d+ of row_norm_sums"] if on_ptx else loop
    assert any(re.search(rf"{place}\b", finding) for place in places), finding


def _places_of_loop(instance: Instance) -> list[str]:
    """Lines of the first loop's condition and body, in the kernel's file, and what the body calls."""
    lines = render(instance).text.splitlines()
    begin = next(i for i, line in enumerate(lines, 1) if line.startswith("  for (int i"))
    end = next(i for i, line in enumerate(lines, 1) if i > begin and line == "  }")
    return [rf"row_norm_sums\.cu:{i}" for i in range(begin, end + 1)] + [r"types\.cuh:\d+"]


_ROOT = """{turn}
  float sum = turn * 3e-7f;
  for (int i = 0; i < kWidth; ++i) sum += to_float(x[row * x_rows_stride + i]) * to_float(x[row * x_rows_stride + i]);
  float const root = sqrtf(sum / kWidth"""


def _on(job: Job, **changes: Any) -> Job:
    return replace(job, instance=replace(job.instance, **changes))


def _job(name: str, implementation: str = "naive") -> Job:
    """The default config of an operator's default problem."""
    operator, result = operators.load(name), operators.implementation(name, implementation)
    problem = operator.problem()
    return Job(
        InstanceFields(name, implementation, to_fields(problem), to_fields(result.default(problem, ARCHES["sm_90a"])))
    )


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_what_was_right_is_known_on_every_gpu_until_the_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "kept", ignore=shutil.ignore_patterns("__pycache__"))
    _edit(folder / "operator.py", 'name="row_norm"', 'name="kept"')
    monkeypatch.setenv("TUNER_OPERATORS", str(tmp_path))
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    job, known = _job("kept"), VerdictCache(Cache(tmp_path / "cache"))
    with Checker(1, known=known) as checker:
        ((_, first),) = checker.check_many([job])
    assert first.ok
    assert known.find(key_of(job)) == first
    with Checker(1, timeout_s=0.001, known=known) as checker:  # too short to run anything
        assert list(checker.check_many([job, job])) == [(0, first), (1, first)]
        _edit(folder / "naive/kernel.cu.jinja", "// ", "//  ")
        ((_, changed),) = checker.check_many([job])
    assert not changed.ok


def test_a_verdict_that_is_not_ok_is_not_kept(tmp_path: Path) -> None:
    known = VerdictCache(Cache(tmp_path))
    known.keep("5eed", Verdict((), ("a race",)))
    assert known.find("5eed") is None


def test_the_key_of_a_verdict_changes_with_all_that_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job("flash_attention", "mma_sync")
    others = [
        _job("flash_attention"),
        _on(job, problem={**job.instance.problem, "causal": True}),
        _on(job, config={**job.instance.config, "BN": 16}),
        replace(job, modes=PLAIN),
        replace(job, thorough=True),
    ]
    keys = {key_of(entry) for entry in (job, *others)}
    monkeypatch.setattr(verdict_cache, "program", lambda _: "another emulator")
    assert len(keys | {key_of(job)}) == len(others) + 2


def test_what_judges_is_part_of_the_key() -> None:
    """Were this list empty, what was found by an older program would stand for ever."""
    judging = {str(change) for change in verdict_cache.judging()}
    modules = (
        "tuner.evaluate.check.checker",
        "tuner.evaluate.check.compare",
        "tuner.evaluate.check.edges",
        "tuner.compiler.render",
        "tuner.backends.emulator",
        "tuner.backends.ptx.run",
    )
    for name in (
        *modules,
        "tuner.spec.operator",
        "tuner.operators",
        "tuner.compiler.nvrtc",
        "tuner.spec.draw",
        "tuner.results.verdict",
    ):
        assert (spec := find_spec(name)) and spec.origin in judging, name


def test_an_edit_below_an_operators_folder_changes_what_is_part_of_the_key(tmp_path: Path) -> None:
    (work := tmp_path / "own" / "fast" / "work.py").parent.mkdir(parents=True)
    work.write_text("counts\n")
    before = verdict_cache.program(tmp_path)
    work.write_text("counts otherwise\n")
    verdict_cache.program.cache_clear()
    assert verdict_cache.program(tmp_path) != before


def test_problems_with_the_same_edges_share_a_verdict() -> None:
    job = _job("flash_attention", "mma_sync")
    assert key_of(job) == key_of(_on(job, problem={**job.instance.problem, "seq_q": 8192}))


def test_a_budget_that_only_an_assertion_reads_does_not_tell_two_kernels_apart() -> None:
    job = _job("flash_attention", "mma_sync")
    larger = int(job.instance.config["smem_budget"]) + 1024
    assert key_of(job) == key_of(_on(job, config={**job.instance.config, "smem_budget": larger}))


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("constexpr int kBudget = 2;  // bytes\n", True),
        ("constexpr int kBudget = 1;\nconstexpr int kRows = 4;\n", False),
        ('constexpr int kBudget = 1;\nstatic_assert(kBudget > 0, "a budget");\n', True),
        ("constexpr int kBudget = 1;\nint f() { return kBudget; }\n", False),
    ],
)
def test_a_source_differs_by_what_its_instructions_can_depend_on(line: str, same: bool) -> None:
    def source(text: str) -> Source:
        used = 'static_assert(kRows <= kBudget, "the rows");\nint g() { return kRows; }\n'
        return Source(("k",), f"{text}{used}", (("a.cuh", "constexpr int kRows = 3;"),), "host")

    assert (effective(source("constexpr int kBudget = 1;\n")) == effective(source(line))) == same
