"""Tests that bugs inserted into correct kernels are found and named, and that the correct kernels have no findings."""

import pytest

from tests.backends.emulator.emulated import CHECKED, PLAIN, source
from tests.backends.emulator.mutations import BEGIN, MUTATIONS, Mutation, observe
from tests.backends.emulator.scenarios import Scenario, scenarios
from tests.support.claims import compiled
from tuner.backends.emulator import Mode
from tuner.base.assets import PRIMITIVES

SCENARIOS = scenarios()
SEEDS = 50


@pytest.mark.sampled(12)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.kernel}: {mutation.bug}")
def test_checked_modes_name_the_bug(mutation: Mutation) -> None:
    for mode in CHECKED:
        kinds = {finding.kind for finding in observe(mutation, mode, SCENARIOS[mutation.kernel]).findings}
        assert mutation.kind in kinds, mode


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_correct_kernel_has_no_findings_over_many_seeds(scenario: Scenario) -> None:
    kernel = scenario.build(checked=True)
    for seed in range(SEEDS):
        timing = ("early", "late", "random")[seed % 3]
        run, right = scenario.launch(kernel, Mode(True, "random", timing, seed))
        assert ([str(finding) for finding in run.findings], right) == ([], True), seed


@pytest.mark.sampled(12)
@pytest.mark.parametrize("mode", [*PLAIN, Mode(schedule="random", asynchronous="random", seed=3)], ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_correct_kernel_is_right_in_every_plain_mode(scenario: Scenario, mode: Mode) -> None:
    run, right = scenario.launch(scenario.build(checked=False), mode)
    assert (run.findings, right) == ((), True)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_correct_kernel_compiles_for_the_gpu(scenario: Scenario) -> None:
    cubin = compiled(source(f"{scenario.name}.cu", (scenario.name,), (), "cuda"), scenario.arch)
    assert cubin.entries[scenario.name].spills == 0


def test_the_readme_lists_every_bug_and_misses_none() -> None:
    readme = (PRIMITIVES / "README.md").read_text()
    assert [mutation.bug for mutation in MUTATIONS if f"| {mutation.bug} |" not in readme] == []
    assert "missed" not in readme.partition(BEGIN)[2]
