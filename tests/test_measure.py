"""A measuring session on a simulated device: what is timed, what is refused, and what survives."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner import operators, tune
from tuner.arch import gpu
from tuner.canonical import encode
from tuner.check import Checker
from tuner.device import Code, Fault
from tuner.errors import UsageError
from tuner.evaluate import Candidate
from tuner.final import Rules, decide
from tuner.ledger import Ledger
from tuner.measure import Bench, Measurer
from tuner.nvrtc import Compiler
from tuner.operator import canonical, to_fields
from tuner.policy import MeasurementPolicy
from tuner.result import Evidence, Stage
from tuner.samples import estimate
from tuner.screening import screen
from tuner.settle import settle
from tuner.simulated import Plant, Simulation
from tuner.store import Store
from tuner.trial import Heat, Task
from tuner.worker import Stand, Worker

OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=16, batch=1, heads=1, seq_q=64)
GPU = gpu("sm_80")
IMPLEMENTATION = operators.implementation("flash_attention", "mma_sync")
SPACE = IMPLEMENTATION.space(PROBLEM, GPU.arch)
POLICY = MeasurementPolicy(warm_up_us=100, limit_s=0.5)
CALM = Simulation("sm_80", noise=0.005, lies=0, throttled=0)


def code(config: Any) -> Code:
    return Code("flash_attention", "mma_sync", to_fields(PROBLEM), to_fields(config), b"")


def spread(count: int) -> list[Any]:
    """Configs from all over the space."""
    return [SPACE[i * (len(SPACE) // count)] for i in range(count)]


def timed_as(configs: list[Any], times: list[float]) -> tuple[tuple[str, float], ...]:
    return tuple((encode(to_fields(config)), us) for config, us in zip(configs, times, strict=True))


def planted(what: str, **told: Any) -> Simulation:
    return replace(CALM, plants=(Plant("BM", SPACE[0].BM, what),), **told)


# ---- one config on the device


def test_a_right_config_is_timed_to_its_truth() -> None:
    stand = Stand(replace(CALM, times_us=timed_as([SPACE[0]], [50.0])).open())
    found = stand.do(Task(code(SPACE[0]), POLICY))
    assert found.fell is None
    assert found.verdict.ok
    assert [each.time_us for each in found.samples] == pytest.approx([50.0] * POLICY.most_samples, rel=0.05)


def test_a_config_that_cannot_beat_the_best_gets_few_samples() -> None:
    stand = Stand(replace(CALM, times_us=timed_as([SPACE[0]], [50.0])).open())
    assert len(stand.do(Task(code(SPACE[0]), POLICY, best_us=30.0)).samples) == POLICY.screening[0][0]


@pytest.mark.parametrize(
    ("what", "fault", "stage"),
    [
        ("WRONG", Fault.WRONG, Stage.VERIFY),
        ("UNSTEADY", Fault.UNSTEADY, Stage.VERIFY),
        ("overrun", Fault.ILLEGAL, Stage.LAUNCH),
        ("REFUSED", Fault.REFUSED, Stage.LAUNCH),
        ("ILLEGAL", Fault.ILLEGAL, Stage.LAUNCH),
        ("TIMEOUT", Fault.TIMEOUT, Stage.LAUNCH),
    ],
)
def test_nothing_wrong_is_timed(what: str, fault: Fault, stage: Stage) -> None:
    found = Stand(planted(what).open()).do(Task(code(SPACE[0]), POLICY))
    assert found.samples == ()
    assert found.fell is not None
    assert found.fell.fault is fault
    assert fault.stage is stage


def test_a_device_that_often_throttles_is_timed_by_the_samples_in_between() -> None:
    told = replace(CALM, throttled=0.3, times_us=timed_as([SPACE[0]], [50.0]))
    found = Stand(told.open()).do(Task(code(SPACE[0]), replace(POLICY, warm_up_us=20_000)))
    assert [each.time_us for each in found.samples] == pytest.approx([50.0] * POLICY.most_samples, rel=0.05)


# ---- the process around it


@pytest.mark.parametrize(("what", "fault"), [("CRASH", Fault.CRASH), ("stuck", Fault.TIMEOUT)])
def test_a_config_that_takes_the_process_down_costs_only_itself(what: str, fault: Fault) -> None:
    other = next(config for config in SPACE if config.BM != SPACE[0].BM)
    with Worker(planted(what), patience_s=7.0) as worker:
        assert worker.time(Task(code(other), POLICY)).samples
        fell = worker.time(Task(code(SPACE[0]), POLICY)).fell
        assert fell is not None
        assert (fell.fault, fell.fatal) == (fault, True)
        assert worker.time(Task(code(other), POLICY)).samples
        assert worker.restarts == 1


def test_a_planted_best_is_recovered_in_19_of_20_sessions() -> None:
    configs = spread(12)
    times = [100.0, 103.0, 104.0, 106.0, *(110.0 + 10 * i for i in range(8))]
    found = []
    for seed in range(20):
        stand = Stand(Simulation("sm_80", seed=seed, times_us=timed_as(configs, times)).open())
        found.append(winner(stand, configs, seed))
    assert found.count(0) >= 19, found


def winner(stand: Stand, configs: list[Any], seed: int) -> int:
    """Screen without the checks, race the best four, decide."""
    best, medians = float("inf"), []
    for config in configs:
        medians.append(screened(stand, config, best))
        best = min(best, medians[-1])
    field = sorted(range(len(configs)), key=medians.__getitem__)[:4]
    raced = stand.do(Heat(tuple(code(configs[i]) for i in field), POLICY, POLICY.rounds, seed))
    return field[decide(raced.times_us, Rules(tuple((i,) for i in field)), seed).winner]


def screened(stand: Stand, config: Any, best_us: float) -> float:
    timer = stand.timer(code(config), POLICY)
    kept = screen(timer.sample, stand.session, POLICY, best_us)
    return estimate([each.time_us for each in kept]).mid


# ---- the search


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Compiler, Checker]]:
    with Compiler(2) as compiler, Checker(1) as checker:
        yield compiler, checker


def request(budget: int = 4) -> tune.Request:
    return tune.Request(OPERATOR, PROBLEM, GPU, budget=budget, implementation="naive")


def measurer(machines: tuple[Compiler, Checker], worker: Worker, ledger: Ledger | None = None) -> Measurer:
    return Measurer(OPERATOR, PROBLEM, GPU, *machines, Bench(worker, POLICY, ledger or Ledger()))


def test_a_search_on_a_device_ends_with_a_measured_record_that_knows_how_sure_it_is(
    machines: tuple[Compiler, Checker],
) -> None:
    with Store.open(":memory:") as store, Worker(CALM) as worker:
        evaluator = measurer(machines, worker)
        outcome, standing = settle(tune.search(request(), store, evaluator), store, evaluator)
        record = store.record(OPERATOR.name, canonical(PROBLEM), GPU.name)
        assert standing is not None
        assert record == outcome.record
        assert record is not None and record.measurement is not None
        assert record.evidence is Evidence.MEASURED
        assert record.measurement.flip_probability == standing.flip_probability
        assert record.verdict.where == "simulated"
        assert "simulated" in record.identity.policy
        assert evaluator.drift


def test_every_attempt_of_a_device_that_faults_is_a_row_with_its_class(machines: tuple[Compiler, Checker]) -> None:
    faulty = replace(CALM, plants=(Plant("columns", 8, "ILLEGAL"), Plant("columns", 16, "CRASH")))
    with Store.open(":memory:") as store, Worker(faulty) as worker:
        outcome = tune.search(request(), store, measurer(machines, worker))
        assert outcome.record is None
        reasons = [each.attempt.failure.reason for each in store.attempts(operator=OPERATOR.name)]
    assert len(reasons) == 4
    assert all(reason.startswith(("illegal access", "crash")) for reason in reasons), reasons


def test_a_config_that_crashed_the_device_twice_is_never_tried_again(
    machines: tuple[Compiler, Checker], tmp_path: Path
) -> None:
    naive = operators.implementation("flash_attention", "naive")
    config = naive.default(PROBLEM, GPU.arch)
    candidate = [Candidate(naive, config)]
    crashing = replace(CALM, plants=(Plant("threads", config.threads, "CRASH"),))
    for restarts in (2, 0):
        with Worker(crashing) as worker:
            ((_, attempt),) = measurer(machines, worker, Ledger(tmp_path / "ledger")).attempts(candidate)
            assert attempt.failure is not None
            assert attempt.failure.stage is Stage.LAUNCH
            assert worker.restarts == restarts


def test_a_search_for_another_gpu_than_the_one_that_is_there_is_refused(machines: tuple[Compiler, Checker]) -> None:
    with Worker(replace(CALM, gpu="H200")) as worker, pytest.raises(UsageError, match="--gpu H200"):
        measurer(machines, worker)


SESSION = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_measure import CALM, OPERATOR, POLICY, measurer, request
from tuner import tune
from tuner.check import Checker
from tuner.ledger import Ledger
from tuner.nvrtc import Compiler
from tuner.store import Store
from tuner.worker import Worker
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with Store.open(folder / "db") as store, Compiler(1) as c, Checker(1) as k, Worker(CALM) as worker:
        print("ready", flush=True)
        outcome = tune.search(request(6), store, measurer((c, k), worker, Ledger(folder / "ledger")))
        print(outcome.reused, len(outcome.tried), flush=True)
"""


def test_a_killed_session_leaves_a_journal_that_the_next_one_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SESSION.format(tests=str(Path(__file__).parent)), str(tmp_path)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    with Store.open(tmp_path / "db") as store:
        while len(store.attempts(operator=OPERATOR.name)) < 2 and first.poll() is None:
            time.sleep(0.05)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        before = len(store.attempts(operator=OPERATOR.name))
    second = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert second.stdout.splitlines()[1] == f"{before} 6"


# ---- the ledger


def test_a_ledger_bans_what_did_not_come_back_twice_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for _ in range(2):
        ledger = Ledger(path)
        ledger.began("good")
        ledger.ended("good")
        ledger.began("bad")  # and the process is gone
    assert Ledger(path).banned("bad")
    assert not Ledger(path).banned("good")


def test_a_ledger_line_that_a_kill_cut_off_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("began a\nbegan a")
    assert not Ledger(path).banned("a")
