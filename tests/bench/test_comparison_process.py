"""Tests of one process for many comparisons: peers that hang, crash or compile for a long time, and kills."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.base.test_pool import wait_until
from tests.support.simulated_device import Plant, Simulation
from tuner import bench, operators
from tuner.arch import gpu
from tuner.base import journal
from tuner.base.assets import ROOT
from tuner.bench import events, peers
from tuner.bench.comparison import Comparison
from tuner.bench.peers import AbsentError, Peer, Rehearsed
from tuner.bench.timing_process import judged
from tuner.errors import MachineError
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.device_check import cases
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.spec.instance import InstanceFields
from tuner.spec.problem import to_fields

POLICY = MeasurementPolicy(rounds=8)
PLACE = Simulation("H200")


def code(operator: str, **fields: Any) -> Code:
    result, naive = operators.load(operator), operators.implementation(operator, "naive")
    problem = result.problem(**fields)
    config = to_fields(naive.default(problem, gpu("H200").arch))
    return Code(InstanceFields(operator, "naive", to_fields(problem), config), b"")


ATTENTION = code("flash_attention", head_dim=16, batch=1, heads=1, seq_q=64)
KDA = code("kda", seq_len=16, heads=1, key_dim=16, value_dim=16)


@pytest.fixture
def venue() -> Iterator[bench.Venue]:
    with bench.Venue(PLACE) as result:
        yield result


def states(found: Comparison) -> dict[str, str]:
    return {row.label: row.state for row in found.rows}


def test_one_process_serves_comparisons_of_several_operators(venue: bench.Venue) -> None:
    pids = set()
    for operator in (ATTENTION, KDA, ATTENTION):
        assert venue.compare(operator, POLICY).rows[0].state == "ok"
        pids.add(venue._pool.pids())
    assert len(pids) == 1


def test_a_peer_that_compiles_for_long_is_timed_like_the_others(venue: bench.Venue) -> None:
    comparison = venue.compare(ATTENTION, POLICY, guests=(Rehearsed("slow to compile", ready_s=3.0, slower=4.0),))
    row = next(row for row in comparison.rows if row.name == "slow to compile")
    assert row.state == "ok" and row.time_us is not None and row.time_us.count > 1


@pytest.mark.parametrize(
    ("ends", "why"), [("hangs", "not prepared in time; last seen at File .*simulated.py"), ("falls", "SIGSEGV")]
)
def test_a_peer_that_hangs_or_falls_costs_itself_and_no_other(venue: bench.Venue, ends: str, why: str) -> None:
    guests = (Rehearsed("bad", ends=ends, patience_s=1.0), Rehearsed("good"))
    comparison = venue.compare(ATTENTION, POLICY, guests=guests)
    assert {"tuner": "ok", "bad": "lost", "good": "ok"}.items() <= states(comparison).items()
    assert re.search(why, next(row.note for row in comparison.rows if row.name == "bad"))
    assert all(row.time_us for row in comparison.rows if row.state == "ok")


@pytest.mark.slow
def test_a_peer_that_would_take_all_of_the_time_leaves_the_others_enough_for_a_race(venue: bench.Venue) -> None:
    guests = (Rehearsed("quick"), Rehearsed("long", ready_s=3600.0), Rehearsed("behind it"))
    comparison = venue.compare(ATTENTION, MeasurementPolicy(rounds=100_000), guests=guests, patience_s=12.0)
    ours = comparison.rows[0]
    assert ours.time_us is not None and 0 < ours.time_us.count < 100_000  # the time ended the race
    assert {"quick": "ok", "long": "lost"}.items() <= states(comparison).items()


def test_when_the_time_is_over_no_peer_gets_ready(venue: bench.Venue) -> None:
    comparison = venue.compare(ATTENTION, POLICY, guests=(Rehearsed("too late"),), patience_s=0.1)
    assert {"tuner": "ok", "too late": "untimed"}.items() <= states(comparison).items()
    assert "time ran out" in next(row.note for row in comparison.rows if row.name == "too late")


def test_a_fault_of_our_own_is_an_error_that_says_so(venue: bench.Venue) -> None:
    config = dict(ATTENTION.instance.config)
    name, value = next(iter(config.items()))
    other = bench.Venue(Simulation("H200", plants=(Plant(name, value, "WRONG"),)))
    with other, pytest.raises(MachineError, match=r"our own .* fails here"):
        other.compare(ATTENTION, POLICY)
    assert venue.compare(ATTENTION, POLICY).rows[0].state == "ok"


def test_ratios_are_to_ours_launched_in_the_same_way(venue: bench.Venue) -> None:
    comparison = venue.compare(KDA, POLICY, guests=(Rehearsed("peer"),))
    rows = {row.label: row for row in comparison.rows if row.time_us}
    for launch in ("", " (graph)"):
        ours, peer = rows[f"tuner{launch}"], rows[f"peer{launch}"]
        assert ours.ratio is not None and ours.ratio.mid == 1
        assert ours.time_us and peer.time_us and peer.ratio
        assert peer.ratio.mid == pytest.approx(peer.time_us.mid / ours.time_us.mid, rel=0.1)
    eager, graph = (comparison.COLUMNS.index(name) for name in ("eager", "graph"))
    assert all(not (row[eager] and row[graph]) for row in comparison.table())
    assert all(row[comparison.COLUMNS.index("SM MHz")] for row in comparison.table() if row[1] == "ok")


def test_a_journal_comes_to_what_was_told_before_a_line_was_cut_off(venue: bench.Venue, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = venue.compare(ATTENTION, POLICY, into=path, guests=(Rehearsed("peer"),))
    assert events.comparison_of(journal.read(path)) == whole
    text = path.read_bytes()
    path.write_bytes(text[: len(text) - 20])  # into the last round
    comparison = events.comparison_of(journal.read(path))
    assert comparison is not None and [row.label for row in comparison.rows] == [row.label for row in whole.rows]
    assert events.rounds(journal.read(path)) == POLICY.rounds - 1
    first = text.index(b'"event": "round"')
    path.write_bytes(text[:first])
    none = events.comparison_of(journal.read(path))
    assert none is not None and states(none)["tuner"] == states(none)["peer"] == "untimed"


def test_another_try_is_told_behind_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal.Journal(path).append({"event": "meets"})
    path.write_bytes(path.read_bytes() + b'{"event": "enters", "row": {"na')
    journal.Journal(path).append({"event": "meets", "again": True})
    assert [len(attempt) for attempt in events._tries(journal.read(path))] == [1, 1]


CALLER = """
import sys
from pathlib import Path
from tests.bench.test_comparison_process import ATTENTION, PLACE
from tuner import bench
from tuner.bench.peers import Rehearsed
from tuner.evaluate.measure.device_check import cases
from tuner.evaluate.measure.policy import MeasurementPolicy
with bench.Venue(PLACE) as venue:
    guests = (Rehearsed("peer"),)
    venue.compare(ATTENTION, MeasurementPolicy(rounds=100_000), into=Path(sys.argv[1]), guests=guests)
"""


def test_a_comparison_that_is_killed_in_its_race_keeps_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    caller = subprocess.Popen([sys.executable, "-c", CALLER, str(path)], env=environment)
    wait_until(lambda: path.exists() and events.rounds(journal.read(path)) > 5)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    time.sleep(0.2)  # its process ends with it
    before = events.rounds(journal.read(path))
    result = events.comparison_of(journal.read(path))
    assert result is not None and result.rows[0].time_us is not None
    assert before > 5 and result.rows[0].state == "ok" and states(result)["peer"] == "ok"


def test_a_package_that_is_missing_is_told_with_what_to_install() -> None:
    with pytest.raises(AbsentError, match="pip install nowhere_to_be_found"):
        peers.module("nowhere_to_be_found.part")
    with pytest.raises(AbsentError) as error:
        peers.module("fla.nowhere_to_be_found")
    assert "fla" in str(error.value)


def test_a_refusal_of_every_edge_case_keeps_its_reason() -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("head_dim 16 is not served")

    pytest.importorskip("torch")
    edges = cases(operators.load("flash_attention"), ATTENTION.instance.problem, every=False)
    with pytest.raises(AbsentError, match="ValueError: head_dim 16 is not served"):
        judged(Peer("refuses", refuse), edges, "cpu")
