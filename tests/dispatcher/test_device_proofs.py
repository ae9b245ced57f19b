"""Tests of calls without a record on a device that has verified default configs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cupy_double import Driver, asarray, driver
from tests.support.store_factory import OK, WRONG
from tuner import arch, operators
from tuner.backends import emulator, gpu
from tuner.compiler.render import render
from tuner.compiler.verdict_inputs import checked_code
from tuner.dispatcher import config_choice, device_proofs
from tuner.dispatcher.calls import Dispatcher
from tuner.results.proof import Proof
from tuner.results.verdict import Verdict
from tuner.search.prove import default_instances
from tuner.spec.dtype import DType
from tuner.spec.problem import canonical
from tuner.store.records import Snapshot
from tuner.store.sql import Store

__all__ = ["driver"]  # a fixture

OPERATOR = operators.load("flash_attention")
PROMPT = OPERATOR.problem(head_dim=64, batch=4, heads=16, seq_q=2048, causal=True)
SHORT = OPERATOR.problem(head_dim=16, batch=1, heads=2, seq_q=5, seq_k=64, dtype=DType.FP16)
H200 = arch.gpu("H200")
HERE = "13.2"  # the driver of the double


def kept(database: Path, problem: Any, verdicts: dict[str, Verdict], gpu: str = "H200", driver: str = HERE) -> Snapshot:
    """A database with verdicts on the defaults of implementations."""
    with Store.open(database / "tuner.db") as store:
        for instance in default_instances(OPERATOR, problem, H200):
            if verdict := verdicts.get(instance.implementation.name):
                code = checked_code(instance, arch.gpu(gpu), driver)
                store.append_proof(Proof(code, canonical(problem), verdict))
    return Snapshot.load([database / "tuner.db"])


def served(snapshot: Snapshot, problem: Any = PROMPT) -> str:
    return config_choice.choose(OPERATOR, problem, [H200], snapshot).instance.implementation.name


@pytest.mark.usefixtures("driver")
def test_what_the_device_found_right_is_served_by_predicted_order(tmp_path: Path) -> None:
    without = Snapshot.load([])
    assert served(without) == "mma_sync"
    explanation = config_choice.explain(config_choice.choose(OPERATOR, PROMPT, [H200], without), [H200], without)
    assert (
        explanation.unproven == ("wgmma",)
        and "tuner prove flash_attention --gpu here --head-dim 64" in explanation.prove
    )
    snapshot = kept(tmp_path, PROMPT, {"wgmma": OK})
    chosen = config_choice.choose(OPERATOR, PROMPT, [H200], snapshot)
    assert chosen.instance.implementation.name == "wgmma" and chosen.record is None
    assert "the GPU here was found to run right (driver for CUDA 13.2)" in chosen.why
    assert config_choice.explain(chosen, [H200], snapshot).unproven == ()


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("change", [{"driver": "13.0"}, {"gpu": "H100"}])
def test_a_verdict_of_another_driver_or_gpu_says_nothing(tmp_path: Path, change: dict[str, str]) -> None:
    assert served(kept(tmp_path, PROMPT, {"wgmma": OK}, **change)) == "mma_sync"


@pytest.mark.usefixtures("driver")
def test_a_verdict_on_other_code_says_nothing(tmp_path: Path) -> None:
    snapshot = kept(tmp_path, PROMPT, {"wgmma": OK})
    assert served(snapshot, OPERATOR.problem(head_dim=128, batch=4, heads=16, seq_q=2048)) == "mma_sync"
    default = next(
        instance for instance in default_instances(OPERATOR, PROMPT, H200) if instance.implementation.unproven
    )
    verdicts = device_proofs.Verdicts(OPERATOR.name, H200, snapshot)
    assert verdicts.right(default) is True
    assert verdicts.right(default.at(OPERATOR.problem(head_dim=128))) is None


def test_without_that_gpu_in_the_machine_a_verdict_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "available", lambda: False)
    assert served(kept(tmp_path, PROMPT, {"wgmma": OK})) == "mma_sync"


def test_where_only_signed_records_are_served_proofs_are_not(tmp_path: Path, driver: Driver) -> None:  # noqa: ARG001
    snapshot = kept(tmp_path, PROMPT, {"wgmma": OK})
    snapshot._trusted = object()  # type: ignore[assignment]
    assert served(snapshot) == "mma_sync"


@pytest.fixture
def known(driver: Driver) -> Iterator[Driver]:
    """The double, with the default that serves a short call once split_keys is found wrong."""
    for instance in default_instances(OPERATOR, SHORT, H200):
        if instance.implementation.name == "mma_sync":
            driver.know(emulator.build(render(instance, "host"), checked=False))
    yield driver


def test_what_the_device_found_wrong_is_not_served_and_a_repeated_call_looks_for_no_verdict(
    tmp_path: Path, known: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served(Snapshot.load([]), SHORT) == "split_keys"
    dispatcher = Dispatcher(kept(tmp_path, SHORT, {"split_keys": WRONG}))
    rng = np.random.default_rng(0)
    q, k, v = (asarray(rng.standard_normal((1, n, 2, 16)).astype(np.float16)) for n in (5, 64, 64))
    dispatcher.call("flash_attention", q, k, v)
    launched = list(known.launches)
    assert launched

    def looked(*_: object) -> None:
        raise AssertionError("a repeated call looks for a verdict")

    monkeypatch.setattr(device_proofs, "Verdicts", looked)
    monkeypatch.setattr(Snapshot, "proofs", looked)
    dispatcher.call("flash_attention", q, k, v)
    assert known.launches == launched * 2
