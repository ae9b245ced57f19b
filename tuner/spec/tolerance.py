"""Error tolerances of results in one table, by the kind of reduction and the precision of its operands."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tuner.spec.dtype import DType, Precision


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An output passes if its RMSE ratio is at most max(`absolute`, `slack` × the error of `Operator.rounded`)."""

    absolute: float
    slack: float = 1.2


class Reduction(Enum):
    """How an element of a result is computed, which determines its rounding error."""

    NONE = "rounded once from an exact value"
    SUM = "summed in fp32 and rounded once"
    CANCELLING_SUM = "summed over all tokens in fp32, with terms that cancel"
    SOFTMAX = "a sum of probabilities, rounded to the dtype, times values"
    SOFTMAX_GRADIENT = "probabilities and their gradients, rounded to the dtype, times rows"
    RECURRENCE = "a state that is multiplied with rounded operands for every chunk"
    RECURRENCE_SUM = "summed over all tokens, with terms that cancel, from such products"


# One unit in the last place for 16-bit results. In fp32, summation order and the approximate ex2 and lg2 cost 1e-5.
TOLERANCES: Mapping[Reduction, Mapping[str, Tolerance]] = {
    Reduction.NONE: {
        "fp16": Tolerance(1e-3),
        "bf16": Tolerance(8e-3),
        "fp32": Tolerance(1e-5),
        "fp64": Tolerance(1e-13),
    },
    # 16-bit results are compared with the rounded exact results, whose error is scaled by `slack`.
    Reduction.SUM: dict.fromkeys(("fp16", "bf16", "fp32"), Tolerance(1e-5)),
    # There are few elements, so their error is a less reliable measure.
    Reduction.CANCELLING_SUM: {"fp32": Tolerance(2e-5)},
    # In tf32, rounded scores change the sums of exponentials by 1e-4 relative, which `rounded` reproduces.
    Reduction.SOFTMAX: {
        "bf16": Tolerance(4e-3),
        "fp16": Tolerance(5e-4),
        "tf32": Tolerance(1e-3),
        "fp32": Tolerance(2e-5),
    },
    # In fp32 both the kernel and `rounded` may sum in any order: twice the error instead of 1.2 times.
    Reduction.SOFTMAX_GRADIENT: {
        "bf16": Tolerance(5e-3),
        "fp16": Tolerance(7e-4),
        "fp32": Tolerance(2e-5, slack=2),
    },
    Reduction.RECURRENCE: {"bf16": Tolerance(5e-3), "tf32": Tolerance(1e-3), "fp32": Tolerance(1e-5)},
    # There are few elements, so their error is a less reliable measure: 1.5 times that of `rounded`.
    Reduction.RECURRENCE_SUM: {
        "bf16": Tolerance(1e-2, slack=1.5),
        "tf32": Tolerance(2e-3, slack=1.5),
        "fp32": Tolerance(5e-5, slack=1.5),
    },
}


def rounding_tolerance(dtype: DType) -> Tolerance:
    """Return the tolerance of one rounding to `dtype`; 0 for types without a row, such as integers."""
    return TOLERANCES[Reduction.NONE].get(dtype.value, Tolerance(0.0))


def tolerance_of(reduction: Reduction, operands: DType | Precision | str) -> Tolerance:
    """Return the tolerance of a reduction for operands of a dtype or precision, or its name. Raises KeyError if
    unknown.
    """
    return TOLERANCES[reduction][operands if isinstance(operands, str) else operands.value]
