"""The problem of linear_attention_backward: the sizes and dtypes of the forward call to differentiate."""

from dataclasses import dataclass

from tuner.spec import DType, common_fields, extent, static

from ..linear_attention.problem import DECAYS, DTYPES
from ..linear_attention.problem import Problem as Forward
from ..linear_attention.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Problem(Sizes):
    """batch sequences of seq_len tokens; each of heads · head_dim channels has a state of two numbers, s and n.

    The fields have the same names and meaning as in linear_attention. Raises UsageError for sizes that no kernel
    supports.
    """

    head_dim: int = static("D: channels of a head, any number", default=128)
    dtype: DType = static("of q, k, v, do and their gradients", default=DType.BF16, choices=DTYPES)
    decay: str = static("β is one value, one per head, or one per channel", default="scalar", choices=DECAYS)
    use_initial_state: bool = static("the states started at initial_state, and dh0 is returned", default=False)
    use_final_gradient: bool = static("the last states were used: dht is passed", default=False)
    varlen: bool = static("sequences of any length are packed, with boundaries cu_seqlens", default=False)
    key_floor: int = static("keys were clamped to at least -key_floor; clamped keys have no gradient", default=60)
    batch: int = extent("B: sequences; 1 with varlen", default=1)
    seq_len: int = extent("T: tokens of a sequence; with varlen, of all", default=8192)
    heads: int = extent("H", default=96)
    boundaries: int = extent("N + 1: entries of cu_seqlens for N sequences with varlen (0: one sequence)", default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", self.forward().boundaries)

    def forward(self) -> Forward:
        """The forward problem."""
        return Forward(**common_fields(self, Forward), output_final_state=self.use_final_gradient)

    @property
    def final_states(self) -> int:
        """Number of final states: 0 if their gradient is not passed."""
        return self.sequences * self.use_final_gradient
