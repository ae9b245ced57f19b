"""Tests of a device's verdicts on default configs: what is checked, what is stored, and which calls use them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.patience import given_up_soon
from tests.support.simulated_device import Plant, Simulation
from tests.support.simulated_search import CALM, DECODING, PAGED, POLICY
from tuner import arch
from tuner.backends import gpu
from tuner.cli.app import build
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.evaluate.measure.messages import TimingRequest
from tuner.evaluate.measure.worker import Worker
from tuner.evaluate.measurer import Measurer, Setup
from tuner.search import prove
from tuner.search.prove import Judged, default_instances, judge
from tuner.search.request import SearchRequest
from tuner.search.session import Session, measured
from tuner.store.sql import Store

HOPPER = arch.gpu("sm_90a")
DEFAULTS = {instance.implementation.name: instance for instance in default_instances(PAGED, DECODING, HOPPER)}
DEVICE = replace(CALM, gpu="sm_90a")
WRONG = Plant("value_columns", 16, "WRONG")  # which only wgmma's config has
HANGS = Plant("BM", DEFAULTS["split_keys"].config.BM, "TIMEOUT")
SMALL = ("--head-dim", "16", "--batch", "1", "--heads", "1", "--kv-heads", "1", "--max-pages", "4")

Machines = tuple[Compiler, Checker]


@contextmanager
def measurer(machines: Machines, device: Simulation) -> Iterator[Measurer]:
    with Worker(device) as worker:
        yield Measurer(PAGED, DECODING, HOPPER, machines[0], Setup(worker, POLICY, Ledger()))


def judged(store: Store, machines: Machines, device: Simulation, *names: str, again: bool = False) -> dict[str, Judged]:
    instances = [DEFAULTS[name] for name in names] or list(DEFAULTS.values())
    with measurer(machines, device) as opened:
        return {one.implementation: one for one in judge(store, opened, instances, again=again)}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device is the GPU of this machine."""
    monkeypatch.setattr(gpu, "available", lambda: True)
    monkeypatch.setattr(gpu, "current_gpu", lambda _ordinal=None: HOPPER)
    monkeypatch.setattr(gpu, "driver_name", lambda _version=None: "simulated")
    monkeypatch.setattr(gpu, "check_driver", lambda _toolkit: None)


@pytest.mark.parametrize("hang", ["TIMEOUT", pytest.param("stuck", marks=pytest.mark.slow)])
def test_one_that_is_wrong_and_one_that_hangs_cost_only_themselves(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, hang: str
) -> None:
    """A kernel that never ends, and one that takes the process with it."""

    def hangs(job: Any) -> bool:
        question = job[1]
        return isinstance(question, TimingRequest) and question.code.instance.implementation == "split_keys"

    if hang == "stuck":
        given_up_soon(monkeypatch, hangs)
    with Store.open(":memory:") as store:
        result = judged(store, machines, replace(DEVICE, plants=(WRONG, replace(HANGS, what=hang))))
        kept = {proof.code.implementation: proof.verdict for proof in store.proofs(PAGED.name, HOPPER.name)}
    assert {name for name, one in result.items() if one.right} == {"mma_sync", "naive"}
    assert result["wgmma"].reason.startswith("o: RMSE ratio")
    assert "crash" in result["split_keys"].reason or "timeout" in result["split_keys"].reason
    assert {name: verdict.ok for name, verdict in kept.items()} == {name: one.right for name, one in result.items()}
    assert kept["naive"].where == "simulated" and kept["naive"].checks


def test_a_verdict_is_kept_and_what_was_wrong_is_judged_again_on_demand(machines: Machines) -> None:
    wrong = replace(DEVICE, plants=(WRONG,))
    with Store.open(":memory:") as store:
        assert not judged(store, machines, wrong, "wgmma")["wgmma"].earlier
        result = judged(store, machines, DEVICE, "wgmma", "naive")  # which would find it right
        assert (result["wgmma"].earlier, result["wgmma"].right, result["naive"].earlier) == (True, False, False)
        result = judged(store, machines, DEVICE, "wgmma", "naive", again=True)
        assert (result["wgmma"].earlier, result["wgmma"].right, result["naive"].earlier) == (False, True, True)


@pytest.mark.usefixtures("here")
def test_a_search_judges_every_default_once(machines: Machines) -> None:
    request = SearchRequest(PAGED, DECODING, HOPPER, budget=1, implementation="naive")
    with Store.open(":memory:") as store, Worker(DEVICE) as worker:
        session, phases = Session(store, measured(HOPPER, machines[0], Setup(worker, POLICY, Ledger()))), []
        for _ in range(2):
            session.search(request, lambda step: phases.append(step.phase), lambda: False)
        assert len(store.proofs(PAGED.name, HOPPER.name)) == len(DEFAULTS)
        assert phases.count("prove") == len(DEFAULTS)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(build(), [str(argument) for argument in arguments])


@pytest.mark.usefixtures("here")
def test_the_command_says_what_serves_and_ends_with_1_where_one_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "Physical", lambda: replace(DEVICE, plants=(WRONG,)))
    monkeypatch.setattr(prove, "cache_dir", lambda: tmp_path)  # of the ledger
    done = run("prove", PAGED.name, "--gpu", "here", *SMALL, "--db", tmp_path / "tuner.db", "--json")
    assert done.exit_code == 1 and "wgmma is wrong on this GPU: o: RMSE ratio" in done.stderr
    (document,) = json.loads(done.stdout)["problems"]
    assert {one["implementation"]: one["right"] for one in document["judged"]} == {
        name: name != "wgmma" for name in DEFAULTS
    }
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    result = json.loads(run("explain", PAGED.name, "--gpu", "here", *SMALL, "--json").stdout)
    assert (
        result["implementation"] == document["serves"] != "wgmma" and "the GPU here was found to run" in result["why"]
    )
    assert result["unproven"] == []


@pytest.mark.usefixtures("here")
def test_a_warm_up_on_the_machine_of_the_gpu_judges_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "Physical", lambda: DEVICE)
    monkeypatch.setattr(prove, "cache_dir", lambda: tmp_path)
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    done = run("warmup", PAGED.name, "--gpu", "here", *SMALL, "--json")
    (call,) = json.loads(done.stdout)["calls"]
    assert "was found to run right" in call["why"]
    with Store.open(tmp_path / "tuner.db") as store:
        assert all(proof.verdict.ok for proof in store.proofs(PAGED.name, HOPPER.name))


def test_without_that_gpu_the_command_says_so() -> None:
    done = run("prove", PAGED.name, "--gpu", "H100", *SMALL)
    assert done.exit_code == 2 and "no H100 in this machine" in done.stderr
