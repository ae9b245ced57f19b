"""What flash_attention_backward computes on: the forward call whose gradients are wanted, and whether lse was used."""

from dataclasses import dataclass
from typing import Any

from tuner.errors import UsageError
from tuner.spec import Precision, static

from ..flash_attention.operator import Problem as Forward


@dataclass(frozen=True, slots=True)
class Problem(Forward):
    """The sizes and options of flash_attention. Raises UsageError for sizes that no kernel takes."""

    use_lse_gradient: bool = static("lse was used besides o: dlse, its gradient, is given", default=False)

    def __post_init__(self) -> None:
        Forward.__post_init__(self)
        if self.precision is not Precision.DTYPE:
            raise UsageError(f"precision {self.precision.value}: operands are as the tensors are")

    @property
    def lse_gradients(self) -> int:
        """The first dim of dlse: 0 where it is not given."""
        return self.batch * self.use_lse_gradient

    @property
    def lse_bytes(self) -> int:
        """Of lse and, where it is given, dlse, for a query of a head."""
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
