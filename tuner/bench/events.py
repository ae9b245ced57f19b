"""The journal of a comparison, one event per line, and the comparison that the events amount to.

A killed meeting has reported everything except the event in progress, so the comparison is derived from its journal
whether or not its process answered.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tuner.base.journal import Journal
from tuner.bench.comparison import Comparison, Row
from tuner.evaluate.measure.samples import State, Times, disturbed, estimate, in_units, interval, usual

Event = Mapping[str, Any]
_UNTIMED = "untimed"
_FIELDS = ("operator", "problem", "inputs", "config", "implementation", "device", "policy")


class Teller:
    """Writes a meeting's events to its journal."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def meets(self, empty: Comparison) -> None:
        """Record the start of a try, without contenders."""
        self._journal.append({"event": "meets", **{name: getattr(empty, name) for name in _FIELDS}})

    def begins(self, name: str) -> None:
        """Record that a peer starts its preparation. Without a matching end it crashed the process."""
        self._journal.append({"event": "begins", "name": name})

    def ends(self, name: str) -> None:
        self._journal.append({"event": "ends", "name": name})

    def enters(self, row: Row) -> None:
        """Record a contender that is timed from now on."""
        self._journal.append({"event": "enters", "row": asdict(row)})

    def stays_out(self, row: Row) -> None:
        """Record a contender that is not timed, with the reason."""
        self._journal.append({"event": "out", "row": asdict(row)})

    def round(self, times_us: Sequence[float], states: Sequence[State]) -> None:
        """Record the time of each contender, in order of entry, and the device state just after it."""
        device_states = [asdict(state) for state in states]
        self._journal.append({"event": "round", "times_us": list(times_us), "states": device_states})


def comparison_of(events: Sequence[Event]) -> Comparison | None:
    """Return the comparison of a journal: the last try with a round, else the last try; None if there is none."""
    tries = list(_tries(events))
    timed = [attempt for attempt in tries if any(event["event"] == "round" for event in attempt)]
    return _comparison((timed or tries)[-1]) if tries else None


def rounds(events: Sequence[Event]) -> int:
    """Return the number of rounds of the last try."""
    return sum(event["event"] == "round" for event in _last(events))


def peers(events: Sequence[Event]) -> tuple[tuple[str, ...], str]:
    """Return (peers that were prepared or excluded in the last try, the peer that crashed the process)."""
    last = _last(events)
    began = [event["name"] for event in last if event["event"] == "begins"]
    ended = tuple(event["name"] for event in last if event["event"] == "ends")
    return ended, next((name for name in began if name not in ended), "")


def _last(events: Sequence[Event]) -> Sequence[Event]:
    tries = list(_tries(events))
    return tries[-1] if tries else []


def _tries(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Yield the events of each try; other lines of the journal are skipped."""
    tries = [event for event in events if "event" in event]
    begins = [i for i, event in enumerate(tries) if event["event"] == "meets"]
    for begin, end in pairwise([*begins, len(tries)]):
        yield tries[begin:end]


def _comparison(events: Sequence[Event]) -> Comparison:
    entered = [Row(**event["row"]) for event in events if event["event"] == "enters"]
    out = [Row(**event["row"]) for event in events if event["event"] == "out"]
    heard = [event for event in events if event["event"] == "round" and len(event["times_us"]) == len(entered)]
    rows = _timed(entered, heard) if heard else [_untimed(row) for row in entered]
    return Comparison(**{name: events[0][name] for name in _FIELDS}, rows=(*rows, *out))


def _timed(entered: Sequence[Row], heard: Sequence[Event]) -> list[Row]:
    """Return the rows with the times of valid rounds; ratios are relative to ours with the same launch mode, if
    present.
    """
    states = [[State(**state) for state in event["states"]] for event in heard]
    times = np.array([event["times_us"] for event in heard])[_calm(states)]
    logs = np.log(times)
    launches_of_ours = {row.launch: i for i, row in enumerate(entered) if row.name == entered[0].name}
    timed = []
    for i, row in enumerate(entered):
        beside = 0 if row.state == "roof" else launches_of_ours.get(row.launch)
        ratio = None if beside is None else in_units(interval(logs[:, i] - logs[:, beside]))
        clock = float(np.median([state[i].sm_mhz for state in states]))
        time_us = estimate(times[:, i].tolist())
        timed.append(replace(row, time_us=time_us, ratio=ratio, sm_mhz=clock))
    return timed


def _calm(states: Sequence[Sequence[State]]) -> Times:
    """Return a mask of the rounds without throttling or other processes; all rounds if there would be none."""
    session = usual([state for moment in states for state in moment])
    calm = np.array([not any(disturbed(state, session) for state in moment) for moment in states])
    return calm if calm.any() else np.ones_like(calm)


def _untimed(row: Row) -> Row:
    return replace(row, state=_UNTIMED, note=row.note or "the time ran out before the first round")
