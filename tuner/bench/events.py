"""What happens in a comparison, an event a line of its journal; and the comparison that these events come to.

A meeting that is killed at any moment has reported all but the event in hand, so a comparison is what its journal says,
whether its process answered or not.
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
    """Tells a meeting's events to its journal."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def meets(self, empty: Comparison) -> None:
        """Another try begins, with nobody in it yet."""
        self._journal.append({"event": "meets", **{name: getattr(empty, name) for name in _FIELDS}})

    def begins(self, name: str) -> None:
        """A peer gets ready. Without an end it took the process down."""
        self._journal.append({"event": "begins", "name": name})

    def ends(self, name: str) -> None:
        self._journal.append({"event": "ends", "name": name})

    def enters(self, row: Row) -> None:
        """A contender that is timed from now on."""
        self._journal.append({"event": "enters", "row": asdict(row)})

    def stays_out(self, row: Row) -> None:
        """One that is not, with the reason."""
        self._journal.append({"event": "out", "row": asdict(row)})

    def round(self, times_us: Sequence[float], states: Sequence[State]) -> None:
        """A time and the device just after it, of each who entered, in that order."""
        device_states = [asdict(state) for state in states]
        self._journal.append({"event": "round", "times_us": list(times_us), "states": device_states})


def comparison_of(events: Sequence[Event]) -> Comparison | None:
    """What the lines of a journal come to: the last try with a round, or else the last; None where nobody met."""
    tries = list(_tries(events))
    timed = [attempt for attempt in tries if any(event["event"] == "round" for event in attempt)]
    return _comparison((timed or tries)[-1]) if tries else None


def rounds(events: Sequence[Event]) -> int:
    """How many the last try came to."""
    return sum(event["event"] == "round" for event in _last(events))


def peers(events: Sequence[Event]) -> tuple[tuple[str, ...], str]:
    """(who got ready in the last try, or stayed out of it; who took its process down meanwhile)."""
    last = _last(events)
    began = [event["name"] for event in last if event["event"] == "begins"]
    ended = tuple(event["name"] for event in last if event["event"] == "ends")
    return ended, next((name for name in began if name not in ended), "")


def _last(events: Sequence[Event]) -> Sequence[Event]:
    tries = list(_tries(events))
    return tries[-1] if tries else []


def _tries(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Other lines of the journal are left out."""
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
    """With times of the rounds that count; ratios are to ours launched in the same way, where it is there."""
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
    """The rounds that no throttle and no other process disturbed, as a mask; all, where that would leave none."""
    session = usual([state for moment in states for state in moment])
    calm = np.array([not any(disturbed(state, session) for state in moment) for moment in states])
    return calm if calm.any() else np.ones_like(calm)


def _untimed(row: Row) -> Row:
    return replace(row, state=_UNTIMED, note=row.note or "the time was over before a round")
