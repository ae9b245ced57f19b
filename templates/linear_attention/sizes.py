"""Sizes that follow from a problem's fields, in linear_attention and in its backward pass alike."""

from tuner.spec import DType


class Sizes:
    """Of a Problem, which has these fields and derives from this class."""

    __slots__ = ()

    head_dim: int
    dtype: DType
    decay: str
    use_initial_state: bool
    varlen: bool
    batch: int
    seq_len: int
    heads: int
    boundaries: int

    @property
    def use_beta(self) -> bool:
        """Whether β is a tensor, and not one number."""
        return self.decay != "scalar"

    @property
    def sequences(self) -> int:
        return self.boundaries - 1 if self.varlen else self.batch

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim

    @property
    def elements(self) -> int:
        """Of q, and of each tensor of its shape."""
        return self.batch * self.seq_len * self.channels

    @property
    def numbers(self) -> int:
        """Of a channel's state: s and n."""
        return 2

    # The sizes of tensors that are not always there: 0 where they are not.

    @property
    def beta_heads(self) -> int:
        return self.heads * (self.decay != "scalar")

    @property
    def beta_channels(self) -> int:
        return self.head_dim if self.decay == "channel" else 1

    @property
    def initial_states(self) -> int:
        return self.sequences * self.use_initial_state
