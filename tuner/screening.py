"""How many samples a config is worth: few for a hopeless one, more for one that may be the best."""

from collections.abc import Callable

from tuner.policy import MeasurementPolicy
from tuner.samples import Sample, State, estimate, undisturbed

_RETRIES = 2  # samples drawn for each that counts, at most


def screen(
    draw: Callable[[], Sample], session: Callable[[], State], policy: MeasurementPolicy, best_us: float
) -> tuple[Sample, ...]:
    """The undisturbed samples of a config; fewer than the policy's most where it cannot beat `best_us` (inf: none yet).

    Empty when every sample was disturbed. `session` is the device's usual state so far.
    """
    drawn: list[Sample] = []
    kept: tuple[Sample, ...] = ()
    for wanted, factor in policy.screening:
        while len(kept) < wanted and len(drawn) < _RETRIES * wanted:
            drawn.append(draw())
            kept = undisturbed(drawn, session())
        if kept and estimate([each.time_us for each in kept]).low > factor * best_us:
            break
    return kept
