"""Any executor of Python takes the problems of a search, and nothing of Dask is needed for it."""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tuner import operators
from tuner.arch import gpu
from tuner.base.assets import ROOT
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.search import fleet
from tuner.search.many_problems import CampaignRequest
from tuner.search.portfolio import Terms
from tuner.search.problem_waves import waves
from tuner.search.request import SearchRequest
from tuner.search.study import Progress
from tuner.search.work_unit import CAMPAIGNS, CancelledError, _observer, unit_of
from tuner.store.sql import Holder, Store

REST = {"code": "", "measured": False, "stage": 0}


def request(db: str, *rows: int) -> CampaignRequest:
    operator = operators.load("row_add")
    searches = tuple(
        SearchRequest(operator, operator.problem(rows=count, entries=count + 2), gpu("sm_80"), budget=2)
        for count in rows
    )
    return CampaignRequest(searches, Terms(), MeasurementPolicy(), workers=1, db=db)


@pytest.mark.usefixtures("own_folder")
def test_processes_of_this_machine_search_side_by_side(tmp_path: Path) -> None:
    db = str(tmp_path / "tuner.db")
    seen: list[fleet.FleetProgress] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        result = fleet.run(request(db, 3, 5), fleet.Workers(executor, lambda: 2, db=db, show=seen.append))
    assert all(outcome.record is not None and outcome.tried for outcome in result.outcomes)
    assert (seen[-1].done, seen[-1].failed, seen[-1].configs) == (seen[-1].problems, 0, 4)
    with Store.open(db) as store:
        assert len(store.records("row_add")) == 2
        assert store.claimed("campaigns") == {}


@pytest.mark.usefixtures("own_folder")
def test_once_it_is_stopped_no_other_problem_begins(tmp_path: Path) -> None:
    db = str(tmp_path / "tuner.db")
    seen: list[fleet.FleetProgress] = []

    def stopped() -> bool:
        return any(progress.running for progress in seen)

    with ThreadPoolExecutor(1) as executor:
        result = fleet.run(request(db, 3, 5, 9), fleet.Workers(executor, lambda: 1, db=db, show=seen.append), stopped)
    (outcome,) = result.outcomes  # the one under way was finished
    assert outcome.record is not None and result.families == ()


@pytest.mark.usefixtures("own_folder")
def test_a_unit_whose_search_has_ended_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.search.work_unit._LOOK_S", -1.0)
    made = unit_of(request("", 3).searches[0], {"campaign": "one", "l2": "cold", "launch": "eager"}, **REST)
    with Store.open(tmp_path / "tuner.db") as store:
        holder = Holder.current()
        store.claim(CAMPAIGNS, ["one"], holder)
        observe = _observer(made, store)
        observe(Progress("explore", 1, 2, 0, None))
        store.release(CAMPAIGNS, ["one"], holder)
        with pytest.raises(CancelledError, match="was cancelled"):
            observe(Progress("explore", 2, 2, 0, None))


def test_problems_learn_in_waves_each_as_large_as_all_before() -> None:
    operator = operators.load("flash_attention")

    def wave_numbers(history: bool) -> list[int]:
        requests = [
            SearchRequest(operator, operator.problem(head_dim=64, seq_q=length), gpu("sm_80"), history=history)
            for length in range(64, 64 * 10, 64)
        ]
        return [wave.number for wave in waves(requests)]

    assert wave_numbers(True) == [0, 1, 2, 2, 3, 3, 3, 3, 4]
    assert wave_numbers(False) == [0] * 9


def test_nothing_of_dask_is_imported_without_a_farm() -> None:
    code = "\n".join(
        (
            "import sys",
            "from tuner.cli.app import build",
            "from typer.testing import CliRunner",
            "words = 'search flash_attention --gpu sm_80 --head-dim 16 --budget 0'.split()",
            "assert CliRunner().invoke(build(), words).exit_code == 2",
            "import tuner.search.fleet, tuner.search.local_gpus, tuner.farm_worker",
            "print(*(name for name in sys.modules if name.partition('.')[0] in ('dask', 'distributed', 'tornado')))",
        )
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
