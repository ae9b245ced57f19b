"""Errors of outputs relative to a float64 reference, with limits based on the rounding error."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_dtypes import finfo

from tuner.results.verdict import OutputError
from tuner.spec.operator import Operator
from tuner.spec.problem import Array, Arrays
from tuner.spec.tolerance import Tolerance

_UNSEEN = "(no element was both computed and known)"
_PEAK = 4.0  # the maximum over many elements varies more than the RMS
_CANCELLED = 2.0**-14  # error of fp32 sums relative to their terms if the exact result is 0 because the terms cancel


@dataclass(frozen=True)
class Expected:
    """The expected outputs: exact and rounded values, and the tolerances."""

    exact: Arrays
    rounded: Arrays
    tolerances: Mapping[str, Tolerance]
    case: str = ""  # the sizes and the kind of inputs

    def errors(self, outputs: Mapping[str, Array]) -> tuple[OutputError, ...]:
        """Return one error per output that the problem has; outputs without elements are skipped.

        The limit is max(tolerance, slack × the error of a reference that rounds where the kernel rounds). NaN never
        passes, and infinities must be where the reference has them.
        """
        filled = (name for name in self.exact if np.size(self.exact[name]) or np.size(outputs[name]))
        return tuple(self.error(name, outputs[name]) for name in filled)

    def error(self, name: str, output: Array) -> OutputError:
        """Return the error of one output."""
        return compare(name, output, self.exact[name], self.rounded[name], self.tolerances[name], self.case)


def expect(operator: Operator[Any], problem: Any, arrays: Arrays, case: str = "") -> Expected:
    """Compute the expected outputs of `operator` for the inputs in `arrays`; `case` names them."""
    exact = operator.reference(problem, arrays)
    named = {argument.name: exact[argument.name] for argument in operator.written}
    return Expected(named, operator.rounded(problem, arrays), operator.tolerance(problem), case)


def errors(
    operator: Operator[Any], problem: Any, arrays: Arrays, outputs: Mapping[str, Array]
) -> tuple[OutputError, ...]:
    """Return one error per argument that `operator` writes, for the inputs in `arrays`; see `Expected.errors`."""
    return expect(operator, problem, arrays).errors(outputs)


def keep_worst(worst: dict[str, OutputError], errors: Iterable[OutputError]) -> None:
    """Update `worst` with larger errors, by output."""
    for error in errors:
        worst[error.name] = max(error, worst.get(error.name, error), key=OutputError.badness)


def unexpected_write(
    operator: Operator[Any], before: Mapping[str, Any], exact: Mapping[str, Array], after: Mapping[str, Array]
) -> str:
    """Return the first unexpected change of an argument updated in place, or an empty string.

    `exact` is the reference's result: elements in which it equals `before` must not change by a single bit.
    """
    for name in (argument.name for argument in operator.updated if argument.name in exact):
        kept = np.asarray(exact[name], np.float64) == np.asarray(before[name], np.float64)
        wrong = np.argwhere(kept & (np.asarray(after[name]) != np.asarray(before[name])))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            return f"{name} {list(at)} must stay {before[name][at]}, but is {after[name][at]}"
    return ""


def compare(
    name: str, actual: Array, exact: Array, rounded: Array, tolerance: Tolerance, case: str = ""
) -> OutputError:
    """Compare `actual` with `exact`, and `rounded` with `exact`, where neither of the first two is masked.

    Elements are masked if sampled blocks did not write them or the reference is undefined. If none remain, the error is
    infinite.
    """
    if isinstance(actual, np.ma.MaskedArray) or isinstance(exact, np.ma.MaskedArray):
        seen = ~(np.ma.getmaskarray(actual) | np.ma.getmaskarray(exact))
        if not seen.any():
            return OutputError(name, np.inf, np.inf, tolerance.absolute, tolerance.absolute, case=f"{case} {_UNSEEN}")
        actual, exact, rounded = (np.asarray(array)[seen] for array in (actual, exact, rounded))
    ratio, largest = distance(actual, exact)
    rounding, peak = distance(rounded, exact)
    scale = float(np.max(np.abs(exact), where=np.isfinite(exact), initial=0.0))
    large = tolerance.absolute * scale if scale else _CANCELLED
    limit = max(tolerance.absolute, tolerance.slack * rounding)
    usual = max(tolerance.absolute, tolerance.slack * _roundoff(actual))
    return OutputError(name, ratio, largest, limit, _PEAK * max(large, peak), usual, case)


def _roundoff(output: Array) -> float:
    """Return the relative RMS error of rounding to an output's dtype, about a quarter of a step."""
    dtype = np.asarray(output).dtype
    # No static types.
    return 0.0 if dtype.kind in "biu" else float(finfo(dtype).eps) / 4  # type: ignore[no-untyped-call]


def distance(actual: Array, exact: Array) -> tuple[float, float]:
    """Return (‖actual − exact‖ / ‖exact‖, max |actual − exact|); infinite if they differ in which elements are finite.

    If `exact` is all zero, the first value is the RMS of the nonzero errors, regardless of their number.
    """
    actual, exact = np.asarray(actual, np.float64), np.asarray(exact, np.float64)
    finite = np.isfinite(exact)
    if actual.shape != exact.shape or not np.array_equal(actual[~finite], exact[~finite]):
        return np.inf, np.inf
    difference = np.abs(actual[finite] - exact[finite])
    if not np.isfinite(difference).all():
        return np.inf, np.inf
    norm = float(np.linalg.norm(exact[finite])) or max(difference.size, 1) ** 0.5
    return float(np.linalg.norm(difference)) / norm, float(difference.max(initial=0.0))
