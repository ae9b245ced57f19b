"""Sizes derived from a problem's fields, shared by linear_attention and its backward pass."""

from tuner.spec import DType


class Sizes:
    """Base class of a Problem, which defines these fields."""

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
        """Whether β is a tensor, not a scalar."""
        return self.decay != "scalar"

    @property
    def sequences(self) -> int:
        return self.boundaries - 1 if self.varlen else self.batch

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim

    @property
    def elements(self) -> int:
        """Elements of q, and of each tensor of its shape."""
        return self.batch * self.seq_len * self.channels

    @property
    def numbers(self) -> int:
        """Number of values of a channel's state: s and n."""
        return 2

    # Sizes of optional tensors: 0 if they are absent.

    @property
    def beta_heads(self) -> int:
        return self.heads * (self.decay != "scalar")

    @property
    def beta_channels(self) -> int:
        return self.head_dim if self.decay == "channel" else 1

    @property
    def initial_states(self) -> int:
        return self.sequences * self.use_initial_state
