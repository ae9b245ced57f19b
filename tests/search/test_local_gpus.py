"""Tests of several GPUs in one machine: parallel problems, each on one GPU, and the effect of a failing GPU."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulated_device import Simulation
from tests.support.simulated_search import CALM, GPU, PAGED
from tuner.arch import gpu
from tuner.backends import gpu as device
from tuner.cli.commands import search as command
from tuner.errors import UsageError
from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.results.attempt import Evidence
from tuner.search import fleet
from tuner.search.local_gpus import GpuExecutor, LocalGpu, chosen_gpus, ordinals
from tuner.search.many_problems import Campaign, CampaignRequest
from tuner.search.portfolio import Terms
from tuner.search.request import SearchRequest
from tuner.search.stored_ledger import StoredLedger
from tuner.spec.problem import canonical
from tuner.store.sql import Store


def simulated(ordinal: int, **options: object) -> LocalGpu:
    uuid = f"GPU-{ordinal}"
    return LocalGpu(ordinal, uuid, replace(CALM, uuid=uuid, seed=ordinal, **options))


def search(gpus: list[LocalGpu], problems: int, db: Path, said: list[str]) -> Campaign:
    searches = tuple(
        SearchRequest(
            PAGED,
            PAGED.problem(head_dim=16, batch=1, heads=1, kv_heads=1, max_pages=pages),
            GPU,
            budget=1,
            implementation="naive",
            history=False,
        )
        for pages in range(2, 2 + problems)
    )
    request = CampaignRequest(searches, Terms(), MeasurementPolicy(), workers=1, db=str(db))
    with GpuExecutor(gpus, said.append) as executor:
        return fleet.run(request, fleet.Workers(executor, executor.capacity, measured=True, db=str(db)))


def devices(store: Store) -> dict[str, set[str]]:
    """The GPUs that measured each problem."""
    results: dict[str, set[str]] = {}
    for study in store.studies():
        results.setdefault(study.problem, set()).add(str(study.versions["device"]))
    return results


@pytest.mark.slow
def test_four_gpus_find_the_records_of_twelve_problems(tmp_path: Path) -> None:
    result = search([simulated(ordinal) for ordinal in range(4)], 12, tmp_path / "tuner.db", [])
    assert [outcome.request.problem.max_pages for outcome in result.outcomes] == list(range(2, 14))
    with Store.open(tmp_path / "tuner.db") as store:
        for outcome in result.outcomes:
            assert outcome.record is not None and outcome.record.evidence is Evidence.MEASURED
            assert store.record(PAGED.name, canonical(outcome.request.problem), GPU.name) == outcome.record
        measured_on = devices(store)
    assert len(measured_on) == 12 and all(len(uuids) == 1 for uuids in measured_on.values())
    assert set().union(*measured_on.values()) == {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}


@pytest.mark.slow
def test_a_failing_gpu_costs_its_own_problems_and_others_search_them(tmp_path: Path) -> None:
    results: list[str] = []
    mistaken = replace(simulated(2), opener=Simulation("sm_80", uuid="GPU-of another machine"))
    result = search([simulated(0), simulated(1, broken=True), mistaken], 4, tmp_path / "tuner.db", results)
    assert all(outcome.record is not None for outcome in result.outcomes)
    assert any("GPU 1 (GPU-1) failed" in line and "fallen off the bus" in line for line in results)
    assert any("GPU-of another machine" in line for line in results)
    with Store.open(tmp_path / "tuner.db") as store:
        assert store.deaths(GPU.name) == {}  # no config was to blame
        for outcome in result.outcomes:
            assert outcome.record is not None
            (tried,) = outcome.tried
            assert tried.attempt.failure is None


@pytest.mark.slow
def test_without_a_gpu_that_works_a_search_ends_and_says_why(tmp_path: Path) -> None:
    result = search([simulated(0, broken=True)], 3, tmp_path / "tuner.db", [])
    assert [outcome.record for outcome in result.outcomes] == [None] * 3
    assert all("GPU" in outcome.why_stopped for outcome in result.outcomes)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        yield opened


def test_sessions_share_what_configs_died_of(store: Store, tmp_path: Path) -> None:
    one, other, third = (StoredLedger(store, "H200", Ledger(tmp_path / "none")) for _ in range(3))
    assert one.began("a") and other.began("a")
    assert not third.banned("a")  # both live
    one.died("a")
    other.ended("a")
    assert not third.banned("a") and third.began("a")
    third.died("a")
    assert one.banned("a") and not one.began("a")
    assert not one.banned("b")
    third.forgive_own()
    assert not one.banned("a")


def test_what_an_older_version_wrote_still_bans(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for _ in range(2):
        Ledger(path).began("a")
    assert StoredLedger(store, "H200", Ledger(path)).banned("a")


@pytest.mark.parametrize(
    ("words", "numbers"), [("0", [0]), ("0,2,4-7", [0, 2, 4, 5, 6, 7]), ("3-3,1, 1", [3, 1])], ids=str
)
def test_gpus_are_named_by_numbers_and_ranges(words: str, numbers: list[int]) -> None:
    assert ordinals(words) == numbers


@pytest.mark.parametrize("words", ["", "x", "1-", "3-1", "-1", "0;1"])
def test_what_names_no_gpu_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="give all, or numbers"):
        ordinals(words)


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that shows six GPUs of one model, and two of another."""
    monkeypatch.setattr(device, "count", lambda: 8)
    monkeypatch.setattr(device, "current_gpu", lambda ordinal=0: gpu("H100" if ordinal < 6 else "A100"))
    monkeypatch.setattr(device, "uuid", lambda ordinal: f"GPU-{ordinal}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("eight")
def test_all_gpus_of_the_model_are_chosen_and_each_process_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = chosen_gpus("all", gpu("A100"))
    assert [(one.ordinal, one.uuid, one.visible) for one in chosen] == [(6, "GPU-6", "6"), (7, "GPU-7", "7")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9,8,7,6,5,4,3,GPU-x")  # as this process itself was started
    assert [one.visible for one in chosen_gpus("6-7", gpu("A100"))] == ["3", "GPU-x"]


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("words", "model", "refusal"),
    [("0,6", "H100", "GPU 6 is a A100"), ("8", "H100", "there is no GPU 8 here"), ("all", "H200", "has no H200")],
)
def test_gpus_of_another_model_or_none_are_refused(words: str, model: str, refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        chosen_gpus(words, gpu(model))


@pytest.mark.usefixtures("eight")
def test_a_search_on_one_of_several_gpus_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    command._say_that_there_are_more(Evidence.PREDICTED)
    assert capsys.readouterr().err == ""
    command._say_that_there_are_more(Evidence.MEASURED)
    assert "one of 8 GPUs is used: --gpus all" in capsys.readouterr().err
