"""What linear_attention_backward computes on: the sizes and dtypes of the forward call whose gradients are wanted."""

from dataclasses import dataclass

from tuner.spec import DType, common_fields, extent, static

from ..linear_attention.problem import DECAYS, DTYPES
from ..linear_attention.problem import Problem as Forward
from ..linear_attention.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Problem(Sizes):
    """batch sequences of seq_len tokens; each of heads · head_dim channels has a state of two numbers, s and n.

    The fields have the names and the meaning of linear_attention's. Raises UsageError for what no kernel takes.
    """

    head_dim: int = static("D: channels of a head, any number", default=128)
    dtype: DType = static("of q, k, v, do and their gradients", default=DType.BF16, choices=DTYPES)
    decay: str = static("β is one value, one a head, or one a channel", default="scalar", choices=DECAYS)
    use_initial_state: bool = static("the states started at given values, and dh0 is wanted", default=False)
    use_final_gradient: bool = static("the last states were used: dht is given", default=False)
    varlen: bool = static("sequences of any length follow each other, as cu_seqlens says", default=False)
    key_floor: int = static("keys below -key_floor counted as -key_floor, and have no gradient", default=60)
    batch: int = extent("B: sequences; 1 with varlen", default=1)
    seq_len: int = extent("T: tokens of a sequence; with varlen, of all", default=8192)
    heads: int = extent("H", default=96)
    boundaries: int = extent("N + 1: entries of cu_seqlens for N sequences with varlen (0: one sequence)", default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", self.forward().boundaries)

    def forward(self) -> Forward:
        """The problem whose gradients these are."""
        return Forward(**common_fields(self, Forward), output_final_state=self.use_final_gradient)

    @property
    def final_states(self) -> int:
        """0 where their gradient is not given."""
        return self.sequences * self.use_final_gradient
