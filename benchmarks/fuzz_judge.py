"""Run one draw of `fuzz.py` on the backends and compare it with float64."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import fuzz_apart
import fuzz_draw
import numpy as np

from tuner import operators
from tuner.backends import emulator, ptx
from tuner.backends.emulator import Mode
from tuner.base.fields import formatted
from tuner.errors import TunerError
from tuner.evaluate.check.checker import Job
from tuner.evaluate.check.compare import Expected, unexpected_write
from tuner.evaluate.check.on_ptx import compiled
from tuner.results.attempt import Failed
from tuner.results.verdict import OutputError
from tuner.spec.instance import Instance
from tuner.spec.problem import Arrays

_ON_PTX = 0.15  # fraction of the draws
_APART = 0.5  # fraction of the cases
_FLOPS_ON_PTX = 1e6  # maximum per case, which the PTX interpreter executes in seconds
_NO_DIGITS = 0.1  # where rounding alone costs this much, terms cancelled, and only the maximum error is meaningful
_LSE = 1e-6  # error of a logarithm due to fp32 sums, however close to 0 it is
_SOFTCAP = 2.0**-23  # error of a score relative to a softcap


@dataclass(frozen=True)
class Tried:
    """The result of a draw: the number of problems run on each backend, and the errors."""

    name: str
    emulated: int = 0
    executed: int = 0  # number of PTX instructions executed
    apart: int = 0  # number of emulator runs that were repeated with NaN in a unit
    findings: tuple[str, ...] = ()


def tried(job: tuple[str, str, int]) -> Tried:
    """Run the draw of (operator, implementation, seed)."""
    operator, implementation, seed = job
    rng = random.Random(seed)
    drawn = fuzz_draw.draw(operators.load(operator), operators.implementation(operator, implementation), rng)
    name = f"{operator}/{implementation}"
    if drawn is None:
        return Tried(name)
    ptx_alone = drawn.instance.implementation.checked_on == "ptx"
    on_ptx = rng.random() < _ON_PTX or ptx_alone
    entries = compiled(Job(drawn.instance.fields()), drawn.arch) if on_ptx else None
    findings = [f"{drawn.arch.name}: {entries.reason}"] if isinstance(entries, Failed) else []
    emulated = executed = apart = 0
    for problem, kind in drawn.cases:
        instance, order = drawn.instance.at(problem), rng.choice(ptx.ORDERS)
        arrays, expected = fuzz_draw.given(instance, kind, rng.getrandbits(32))
        description = (
            f"{drawn.arch.name} {formatted(instance.fields().config)} on {formatted(instance.fields().problem)} {kind}"
        )
        try:
            if not ptx_alone:
                findings += [f"{description}: {reason}" for reason in _emulated(instance, arrays, expected, rng)]
                emulated += 1
            small = instance.operator.cost(problem).flops <= _FLOPS_ON_PTX
            if isinstance(entries, dict) and (small or ptx_alone):
                outputs, run = ptx.run(instance, entries, arrays, order=order)
                wrong = run.fault or _wrong(instance, arrays, expected, outputs)
                findings += [f"{description}: PTX, {order}: {wrong}"] if wrong else []
                executed += 1
            if not ptx_alone and rng.random() < _APART:
                reason = _apart(instance, arrays, expected, rng)
                findings += [f"{description}: {reason}"] if reason else []
                apart += reason is not None
        except TunerError as error:
            findings.append(f"{description}: {type(error).__name__}: {error}")
    return Tried(name, emulated, executed, apart, tuple(findings))


def _emulated(instance: Instance, arrays: Arrays, expected: Expected, rng: random.Random) -> Iterator[str]:
    """Yield errors of runs in two orders, one of them with the race detector, up to the first finding."""
    schedule, timing = rng.choice(("order", "random")), rng.choice(("early", "late", "random"))
    first: dict[str, bytes] = {}
    for mode in (Mode(False, "reverse", "late"), Mode(True, schedule, timing, rng.getrandbits(16))):
        outputs, run = emulator.run(instance, arrays, mode, instrumented=True)
        bits = {name: array.tobytes() for name, array in outputs.items()}
        wrong = str(run.findings[0]) if run.findings else _wrong(instance, arrays, expected, outputs)
        if wrong := wrong or ("other bits in another order" if first and first != bits else ""):
            yield f"{mode}: {wrong}"
            return
        first = bits


def _apart(instance: Instance, arrays: Arrays, expected: Expected, rng: random.Random) -> str | None:
    """Return errors outside a unit that became NaN in `arrays`; None if there is no unit."""
    operator = instance.operator
    unit = fuzz_apart.spoil(operator, instance.problem, arrays, np.random.default_rng(rng.getrandbits(32)))
    if unit is None:
        return None
    outputs, run = emulator.run(instance, arrays, Mode(False, rng.choice(("order", "random")), "random"))
    beside = fuzz_apart.elsewhere(operator, outputs, expected.exact, unit)
    wrong = str(run.findings[0]) if run.findings else _wrong(instance, arrays, expected, beside)
    return f"outside a {unit.name} that is NaN: {wrong}" if wrong else ""


def _wrong(instance: Instance, arrays: Arrays, expected: Expected, outputs: Arrays) -> str:
    """Return why outputs are wrong; empty if they are correct."""
    if instance.operator.name == "linear_attention" and arrays["cu_seqlens"].size:
        end = arrays["cu_seqlens"][-1]  # o is undefined for tokens outside all sequences
        outputs["o"][:, end:] = expected.exact["o"][:, end:]
    lse = _LSE + _SOFTCAP * float(arrays.get("softcap", 0))
    errors = [error.reason for error in expected.errors(outputs) if not (error.ok or _says_nothing(error, lse))]
    return unexpected_write(instance.operator, arrays, expected.exact, outputs) or "; ".join(errors)


def _says_nothing(error: OutputError, lse: float) -> bool:
    cancelled = error.limit > _NO_DIGITS and error.max_abs <= error.max_limit
    return cancelled or (error.name == "lse" and error.max_abs <= lse)
