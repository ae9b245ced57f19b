"""The problem of flash_attention_backward: the forward call to differentiate, and whether lse was used."""

from dataclasses import dataclass
from typing import Any

from tuner.errors import UsageError
from tuner.spec import Precision, static

from ..flash_attention.operator import Problem as Forward


@dataclass(frozen=True, slots=True)
class Problem(Forward):
    """The sizes and options of flash_attention. Raises UsageError for sizes that no kernel supports."""

    use_lse_gradient: bool = static("lse was used besides o: dlse, its gradient, is passed", default=False)

    def __post_init__(self) -> None:
        Forward.__post_init__(self)
        if self.precision is not Precision.DTYPE:
            raise UsageError(f"precision {self.precision.value}: operands have the dtype of the tensors")

    @property
    def lse_gradients(self) -> int:
        """The first dim of dlse: 0 if it is not passed."""
        return self.batch * self.use_lse_gradient

    @property
    def lse_bytes(self) -> int:
        """Bytes of lse and, if passed, dlse, per query and head."""
        return 4 + 4 * self.use_lse_gradient


def query_rows(problem: Any) -> int:
    """Rows of dO, Q, O and dQ."""
    rows: int = problem.batch * problem.heads * problem.seq_q
    return rows


def key_rows(problem: Any) -> int:
    """Rows of K, V, dK and dV."""
    rows: int = problem.batch * problem.kv_heads * problem.seq_k
    return rows


def lse_gradient_row(problem: Any) -> dict[str, str]:
    """`dlse_row`: the address of the gradient of lse of query `row` of head `head` in batch `b`, or a null pointer."""
    offset = "b * dlse_lse_gradients_stride + head * dlse_heads_stride + row * dlse_seq_q_stride"
    return {"dlse_row": f"dlse + {offset}" if problem.use_lse_gradient else "nullptr"}
