"""Whether a kernel computes what its operator specifies: the error of each output, and the findings."""

from dataclasses import dataclass
from math import inf, isinf, isnan

from tuner.base.fields import Fields, formatted

# Relative to the result, and to the usual limit: only cancelling terms explain a limit above both.
_CANCELS = 2.0**-6, 4.0


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one output relative to its float64 reference, in one case.

    If the terms of a result cancel, their rounding error is a large fraction of the result, so both the RMSE ratio and
    its limit are large. Messages then show `error` and `allowed`, which are the same two relative to the size of the
    terms.
    """

    name: str
    rmse_ratio: float  # ‖x − ref‖ / ‖ref‖
    max_abs: float  # max |x − ref|
    limit: float  # upper bound of rmse_ratio
    max_limit: float  # upper bound of max_abs
    usual_limit: float = 0.0  # typical `limit` without cancellation; 0 if unknown
    case: str = ""  # sizes and kind of inputs: "seq_q=1 seq_k=77 peaked"; empty if unknown

    @property
    def cancels(self) -> bool:
        """Whether the result is small relative to its terms, judged by its limit."""
        least, usual = _CANCELS
        return self.usual_limit > 0 and max(least, usual * self.usual_limit) < self.limit < inf

    @property
    def error(self) -> float:
        """‖x − ref‖ / ‖ref‖, or relative to the size of the terms if they cancel."""
        return self.rmse_ratio * self.usual_limit / self.limit if self.cancels else self.rmse_ratio

    @property
    def allowed(self) -> float:
        """The upper bound of `error`: `error / allowed` equals `rmse_ratio / limit`."""
        return self.usual_limit if self.cancels else self.limit

    def case_on(self, problem: Fields) -> str:
        """Return the case without the sizes that are equal in `problem`."""
        return " ".join(word for word in self.case.split() if word not in formatted(problem).split())

    @property
    def ok(self) -> bool:
        return self.rmse_ratio <= self.limit and self.max_abs <= self.max_limit  # False for NaN

    @property
    def reason(self) -> str:
        where = f", on {self.case}" if self.case else ""
        if isinf(self.rmse_ratio):
            return (
                f"{self.name}: NaN or infinite where the reference is not; "
                f"outputs are filled with NaN before the launch{where}"
            )
        of = " of terms that cancel" if self.cancels else ""
        ratio = f"RMSE ratio {self.error:.3g}{of} (limit {self.allowed:.3g})"
        return f"{self.name}: {ratio}, largest error {self.max_abs:.3g} (limit {self.max_limit:.3g}){where}"

    def badness(self) -> tuple[bool, float]:
        """A sort key; greater is worse: failures first, then the RMSE ratio relative to its limit."""
        if isnan(self.rmse_ratio) or not self.limit:  # integers must be exact
            return not self.ok, inf if self.rmse_ratio else 0.0
        return not self.ok, self.rmse_ratio / self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check. `findings` are the errors that the emulator or the device reported."""

    errors: tuple[OutputError, ...]
    findings: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()  # one entry per test: "T=63 S=200 heads=4/2 checked random/late seed=1"
    where: str = "emulator"

    @property
    def ok(self) -> bool:
        return bool(self.errors) and not self.findings and all(error.ok for error in self.errors)

    @property
    def lost(self) -> bool:
        """Whether the checking process died or timed out, as on a busy machine; a retry may succeed."""
        return any(finding.startswith("lost: ") for finding in self.findings)

    @property
    def unseen(self) -> str:
        """What this kind of check cannot detect; empty for the emulator and for a device."""
        seen = (
            "the only races detected are those in shared memory that __syncthreads would prevent; none in global memory"
        )
        return seen if self.where.startswith("PTX") else ""

    @property
    def reason(self) -> str:
        """One line that says why it is not ok; empty if it is."""
        if self.findings:
            return self.findings[0]
        return "; ".join(e.reason for e in self.errors if not e.ok) if self.errors else "nothing was compared"
