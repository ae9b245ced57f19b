"""The problem of streaming_attention_backward: the forward call to differentiate, and whether lse was used."""

from dataclasses import dataclass

from tuner.spec import DType, common_fields, extent, static

from ..flash_attention import operator as dense
from ..streaming_attention.problem import DTYPES
from ..streaming_attention.problem import Problem as Forward


@dataclass(frozen=True, slots=True)
class Problem:
    """The last T of S positions attend keys as in streaming_attention, where every key is in its own slot.

    Raises UsageError for sizes that no kernel supports.
    """

    head_dim: int = static("D: elements of a head, 8 to 256 in steps of 8", default=128, choices=dense.HEAD_DIMS)
    dtype: DType = static("of all tensors except lse and dlse", default=DType.BF16, choices=DTYPES)
    use_lse_gradient: bool = static("lse was used besides o: dlse, its gradient, is passed", default=False)
    batch: int = extent("B", default=1)
    heads: int = extent("H: query heads", default=32)
    kv_heads: int = extent("HK: heads of K and V, a divisor of heads (0: equal to heads)", default=0)
    seq_q: int = extent("T: queries", default=16384)
    seq_k: int = extent("S: keys (0: equal to seq_q)", default=0)
    window: int = extent("W: keys that a query attends up to its own, 1 or more", default=1024)
    sinks: int = extent("first keys of a sequence that every query attends in addition, 0 or more", default=4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seq_k", self.seq_k or self.seq_q)
        dense.check_sizes("streaming_attention_backward", self, DTYPES)
        _ = self.forward  # validates windows and sinks

    @property
    def head_dim_v(self) -> int:
        """Columns of V: always head_dim."""
        return self.head_dim

    @property
    def forward(self) -> Forward:
        return Forward(**common_fields(self, Forward))

    @property
    def first_keys(self) -> int:
        """Keys that are attended as sinks: none if every window reaches back to key 0."""
        return 0 if self.window >= self.seq_k else min(self.sinks, self.seq_k)

    @property
    def lse_gradients(self) -> int:
        """The first dim of dlse: 0 if it is not passed."""
        return self.batch * self.use_lse_gradient

    @property
    def lse_bytes(self) -> int:
        """Bytes of lse and, if passed, dlse, per query and head."""
        return 4 + 4 * self.use_lse_gradient
