"""The final race of a measured search: the time and clock of each contender, and the clock over the rounds."""

from dataclasses import dataclass
from statistics import fmean, median

from markupsafe import Markup

from tuner.base.fields import Fields
from tuner.report import vega
from tuner.report.notation import IDLE
from tuner.report.section import Section
from tuner.report.standing import shared_fields
from tuner.report.vega import layer, mark, quantity
from tuner.results.final_race import FinalRace, Lap

_WIDTH, _HEIGHT = 840, 180


@dataclass(frozen=True, slots=True)
class Ran:
    """A contender in the race; 0 means unknown."""

    name: str
    own: Fields  # parameters that differ between contenders
    time_us: float
    cycles: float
    low_mhz: int
    high_mhz: int
    temperature_c: int
    throttle: int
    late: float


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a race; `svg` is None if the clock is unknown."""

    svg: Markup | None
    ran: tuple[Ran, ...]  # the winner first, then by time
    race: FinalRace


def clocks(section: Section) -> Clocks | None:
    """Return the clocks; None without a final race."""
    race = section.data.race
    if race is None or not race.rounds:
        return None
    shared = shared_fields([contender.config for contender in race.contenders])
    order = sorted(range(len(race.contenders)), key=lambda i: (i != race.winner, _time_us(race, i)))
    return Clocks(_drawn(race), tuple(_ran(race, i, shared) for i in order), race)


def _ran(race: FinalRace, contender: int, shared: Fields) -> Ran:
    runner, laps = race.contenders[contender], race.laps(contender)
    clocks_mhz = [lap.sm_mhz for lap in laps]
    throttle = 0
    for lap in laps:
        throttle |= lap.throttle
    return Ran(
        runner.implementation,
        {name: value for name, value in runner.config.items() if name not in shared},
        _time_us(race, contender),
        median(lap.time_us * lap.sm_mhz for lap in laps),
        min(clocks_mhz),
        max(clocks_mhz),
        max(lap.temperature_c for lap in laps),
        throttle,
        fmean(lap.late for lap in laps),
    )


def _time_us(race: FinalRace, contender: int) -> float:
    return median(lap.time_us for lap in race.laps(contender))


def _drawn(race: FinalRace) -> Markup | None:
    """Draw one line per contender, the winner's in bold; triangles mark throttle reasons."""
    rounds = enumerate(race.rounds, 1)
    laps = [_point(race, n, i, lap) for n, laps_of_round in rounds for i, lap in enumerate(laps_of_round) if lap.sm_mhz]
    if not laps:
        return None
    clocks_mhz = [lap.sm_mhz for laps_of_round in race.rounds for lap in laps_of_round if lap.sm_mhz]
    room = max(15, (max(clocks_mhz) - min(clocks_mhz)) // 10)
    y = quantity(
        "mhz",
        title="SM clock, MHz (measured)",
        scale={"domain": [min(clocks_mhz) - room, max(clocks_mhz) + room], "zero": False, "nice": False},
        axis=vega.ABOVE | {"format": "d"},
    )
    axis = {"title": "round", "grid": False, "tickMinStep": 1, "format": "d"}
    x = quantity("round", scale={"domain": [0.7, len(race.rounds) + 0.3], "nice": False}, axis=axis)
    won, lost = ([lap for lap in laps if lap["winner"] is is_winner] for is_winner in (True, False))
    line = {"type": "line", "strokeWidth": 1, "color": "var(--dot)"}
    spec = {
        "width": _WIDTH,
        "height": _HEIGHT,
        "encoding": {"x": x},
        "layer": [
            layer(line, lost, y=y, detail={"field": "contender"}),
            layer({**line, "strokeWidth": 2.5, "color": "var(--accent)"}, won, y=y),
            layer(mark("triangle-down", "var(--bad)", size=30), [lap for lap in laps if lap["throttled"]], y=y),
        ],
    }
    return vega.draw(spec)


def _point(race: FinalRace, number: int, contender: int, lap: Lap) -> dict[str, object]:
    return {
        "round": number,
        "contender": contender,
        "winner": contender == race.winner,
        "mhz": lap.sm_mhz,
        "throttled": bool(lap.throttle & ~IDLE),
    }
