"""Whether a kernel computes what its operator specifies: the error of each output, and the findings."""

from dataclasses import dataclass
from math import inf, isinf, isnan

from tuner.base.fields import Fields, formatted

_CANCELS = 2.0**-6, 4.0  # of the result, and × the usual limit: a limit above both only terms that cancel explain


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far one output is from its float64 reference, in one case.

    Where the terms of a result cancel, rounding them costs a large share of what is left, and so do both the RMSE ratio
    and its limit. People are told `error` of `allowed` then: the same two over the size of the terms.
    """

    name: str
    rmse_ratio: float  # ‖x − ref‖ / ‖ref‖
    max_abs: float  # max |x − ref|
    limit: float  # what rmse_ratio had to stay under
    max_limit: float  # what max_abs had to stay under
    usual_limit: float = 0.0  # about what `limit` is where no terms cancel; 0 where it is not known
    case: str = ""  # sizes and kind of inputs: "seq_q=1 seq_k=77 peaked"; empty where it is not known

    @property
    def cancels(self) -> bool:
        """Whether the result is small beside its terms, as what rounding costs tells."""
        least, usual = _CANCELS
        return self.usual_limit > 0 and max(least, usual * self.usual_limit) < self.limit < inf

    @property
    def error(self) -> float:
        """‖x − ref‖ / ‖ref‖; where terms cancel, over their size, at which rounding costs what it usually does."""
        return self.rmse_ratio * self.usual_limit / self.limit if self.cancels else self.rmse_ratio

    @property
    def allowed(self) -> float:
        """What `error` had to stay under: `error / allowed` is `rmse_ratio / limit`."""
        return self.usual_limit if self.cancels else self.limit

    def case_on(self, problem: Fields) -> str:
        """The case without the sizes that `problem` has, too."""
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
                f"it is full of NaN until a kernel writes it{where}"
            )
        of = " of terms that cancel" if self.cancels else ""
        ratio = f"RMSE ratio {self.error:.3g}{of} (limit {self.allowed:.3g})"
        return f"{self.name}: {ratio}, largest error {self.max_abs:.3g} (limit {self.max_limit:.3g}){where}"

    def badness(self) -> tuple[bool, float]:
        """Greater is worse: what is not ok, then how much of its limit the RMSE ratio takes."""
        if isnan(self.rmse_ratio) or not self.limit:  # integers have no room for an error
            return not self.ok, inf if self.rmse_ratio else 0.0
        return not self.ok, self.rmse_ratio / self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a kernel computes what its operator says. `findings` are the emulator's or the device's complaints."""

    errors: tuple[OutputError, ...]
    findings: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()  # what was run: "T=63 S=200 heads=4/2 checked random/late seed=1"
    where: str = "emulator"

    @property
    def ok(self) -> bool:
        return bool(self.errors) and not self.findings and all(error.ok for error in self.errors)

    @property
    def lost(self) -> bool:
        """Whether who checked died or was too slow, as on a busy machine: another try may end otherwise."""
        return any(finding.startswith("lost: ") for finding in self.findings)

    @property
    def unseen(self) -> str:
        """What a check there cannot see, in words; empty on the emulator and on a device."""
        seen = (
            "of races only those that __syncthreads in shared memory prevents are looked for, and none in global memory"
        )
        return seen if self.where.startswith("PTX") else ""

    @property
    def reason(self) -> str:
        """One line that says why it is not ok; empty when it is."""
        if self.findings:
            return self.findings[0]
        return "; ".join(e.reason for e in self.errors if not e.ok) if self.errors else "nothing was compared"
