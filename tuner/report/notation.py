"""Formatting of values for people, shared by pages, tables and terminals."""

import math

from tuner.base.fields import Fields, Scalar, formatted, scalar
from tuner.results.verdict import OutputError

IDLE = 0x01  # NVML reason: the GPU was idle
_REASONS = {  # by NVML bit
    IDLE: "idle",
    0x02: "clocks set by a user",
    0x04: "power cap",
    0x08: "slowdown by hardware",
    0x10: "clocks in step with other GPUs",
    0x20: "heat",
    0x40: "heat, by hardware",
    0x80: "power brake",
    0x100: "clocks of a display",
}
_SPACE = "\u00a0"  # no-break space between a number and its unit


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, singular: str, plural: str) -> str:
    """`1 try`, `128 tries`."""
    return f"{number:,} {singular if number == 1 else plural}"


def times(ratio: float) -> str:
    """Format a ratio with enough digits to distinguish close configs: `1.043×`, `12.6×`."""
    return _finite(ratio, f"{ratio:.3f}×" if ratio < 10 else f"{ratio:.1f}×")


def percent(share: float) -> str:
    """Format a fraction as a percentage: 0.031 is `3.1 %`, 0.24 is `24 %`, 0.0002 is `<0.1 %`."""
    if 0 < share < 0.0005:
        return f"<0.1{_SPACE}%"
    return _finite(share, f"{100 * share:.{0 if share >= 0.0995 else 1}f}{_SPACE}%")


def change(share: float) -> str:
    """Format a signed fraction: `+3.1 %`, `−0.4 %`."""
    return f"{'−' if share < 0 else '+'}{percent(abs(share))}"


def value(setting: Scalar | None) -> str:
    """Format a parameter's value; a config without the parameter has `none`."""
    return "none" if setting is None else scalar(setting)


def signed(number: float) -> str:
    """Format a correlation: `−0.71`, `+0.20`."""
    return _finite(number, f"{'−' if number < 0 else '+'}{abs(number):.2f}")


def significant(value: float) -> str:
    """Format three significant digits: `0.00231`, `2.31e-05`."""
    return _finite(value, f"{value:.3g}")


def worst_case(error: OutputError, problem: Fields) -> str:
    """Format the case of an error, without `problem`'s fields: `seq_q=1 seq_k=77 one_hot, relative to terms that
    cancel`.
    """
    return f"{error.case_on(problem)}{', relative to terms that cancel' if error.cancels else ''}"


def microseconds(value: float) -> str:
    """Format a time in µs without its unit, which is in the heading."""
    return _finite(value, f"{value:.2f}" if value < 1000 else f"{value:.1f}")


def reasons(throttle: int) -> str:
    """Return NVML's throttle reasons in words; empty for none."""
    unknown = throttle & ~sum(_REASONS)
    texts = [text for bit, text in _REASONS.items() if throttle & bit]
    return ", ".join([*texts, *([f"0x{unknown:x}"] if unknown else [])])


def kib(nbytes: int) -> str:
    """Format bytes in KiB without the unit, which is in the heading."""
    return f"{nbytes / 1024:.1f}"


def duration(seconds: float) -> str:
    """Format a duration: `0.31 s`, `42 s`, `4 min 10 s`, `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.2g}{_SPACE}s"
    total = round(seconds)
    if total < 60:
        return f"{total}{_SPACE}s"
    if total < 3600:
        return f"{total // 60}{_SPACE}min {total % 60:02d}{_SPACE}s"
    return f"{total // 3600}{_SPACE}h {total % 3600 // 60:02d}{_SPACE}min"


def _finite(value: float, text: str) -> str:
    return text if math.isfinite(value) else "not finite"


SPELLINGS = (
    scalar,
    formatted,
    count,
    counted,
    times,
    percent,
    change,
    significant,
    signed,
    value,
    worst_case,
    microseconds,
    kib,
    reasons,
    duration,
)
