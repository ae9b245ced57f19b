"""What follows from the fields of a problem, and which no kernel takes: in kda and in its backward pass alike."""

from collections.abc import Iterator

from tuner.spec import DType, Precision

DIMS = tuple(range(16, 257, 16))
DTYPES = (DType.BF16, DType.FP16, DType.FP32)
INDEX_DTYPES = (DType.INT64, DType.INT32)
MAX_BLOCKS = 65535  # of a grid's second and third dims: heads and sequences
MAX_SEQ = 2**30  # positions are int32 in the kernels, with room for a chunk more


class Sizes:
    """Of a Problem, which has these fields and derives from this class."""

    __slots__ = ()

    key_dim: int
    value_dim: int
    dtype: DType
    precision: Precision
    gate_dtype: DType
    beta_dtype: DType
    index_dtype: DType
    use_cu_seqlens: bool
    use_initial_state: bool
    state_v_first: bool
    use_beta_sigmoid_in_kernel: bool
    allow_neg_eigval: bool
    use_gate_in_kernel: bool
    use_dt_bias: bool
    use_lower_bound: bool
    batch: int
    seq_len: int
    heads: int
    value_heads: int
    boundaries: int

    def settle(self) -> None:
        """Give what was left to follow its value, so that one problem has one name; in __post_init__."""
        if self.precision is Precision.FP32 and self.dtype is DType.FP32:
            object.__setattr__(self, "precision", Precision.DTYPE)
        object.__setattr__(self, "value_heads", self.value_heads or self.heads)
        object.__setattr__(self, "boundaries", max(self.boundaries, 2) * self.use_cu_seqlens)

    @property
    def sequences(self) -> int:
        """N: how many sequences there are, each with a state a head."""
        return self.boundaries - 1 if self.use_cu_seqlens else self.batch

    @property
    def operands(self) -> str:
        """What operands of matrix products are rounded to: bf16, tf32 or fp32."""
        if self.precision is Precision.DTYPE:
            return "fp32" if self.dtype is DType.FP32 else "bf16"
        return self.precision.value

    @property
    def state_rows(self) -> int:
        """The outer dim of a state as it is stored."""
        return self.value_dim if self.state_v_first else self.key_dim

    @property
    def state_columns(self) -> int:
        """The inner one."""
        return self.key_dim if self.state_v_first else self.value_dim

    @property
    def mean_len(self) -> int:
        """Tokens of a sequence: seq_len, or the mean of packed ones, whose lengths only the run knows."""
        return -(-self.batch * self.seq_len // self.sequences)

    # The first dims of tensors that are not always there: 0 where they are not.

    @property
    def initial_states(self) -> int:
        return self.sequences * self.use_initial_state

    @property
    def gate_heads(self) -> int:
        return self.value_heads * self.use_gate_in_kernel

    @property
    def bias_heads(self) -> int:
        return self.value_heads * self.use_dt_bias


def refusals(problem: Sizes, operator: str) -> Iterator[str]:
    """Why no kernel of the operator takes the problem: nothing where one does."""
    for name, known in (("key_dim", DIMS), ("value_dim", DIMS)):
        if getattr(problem, name) not in known:
            yield f"{name} {getattr(problem, name)}: {operator} takes 16 to 256 in steps of 16"
    yield from _unknown(problem, operator)
    if problem.use_cu_seqlens and problem.batch != 1:
        yield f"batch {problem.batch}: cu_seqlens packs all sequences into a batch of 1"
    for name in ("batch", "seq_len", "heads"):
        if getattr(problem, name) < 1:
            yield f"{name} {getattr(problem, name)}: {operator} takes 1 and more"
    if problem.heads > 0 and problem.value_heads % problem.heads:
        yield f"value_heads {problem.value_heads} is no multiple of heads {problem.heads}"
    if max(problem.sequences, problem.value_heads) > MAX_BLOCKS or problem.seq_len > MAX_SEQ:
        yield (
            f"sequences {problem.sequences}, value_heads {problem.value_heads}, seq_len {problem.seq_len}: too large; "
            f"sequences and value_heads go up to {MAX_BLOCKS}, seq_len up to {MAX_SEQ}"
        )
    if problem.allow_neg_eigval and not problem.use_beta_sigmoid_in_kernel:
        yield "allow_neg_eigval scales the kernel's sigmoid: set use_beta_sigmoid_in_kernel, or pass beta in (0, 2)"
    if (problem.use_dt_bias or problem.use_lower_bound) and not problem.use_gate_in_kernel:
        yield "dt_bias and lower_bound are of the kernel's gate: set use_gate_in_kernel, or pass g as it decays"


def _unknown(problem: Sizes, operator: str) -> Iterator[str]:
    choices = dict.fromkeys(("dtype", "gate_dtype", "beta_dtype"), DTYPES)
    for name, known in (*choices.items(), ("precision", tuple(Precision)), ("index_dtype", INDEX_DTYPES)):
        found = getattr(problem, name)
        if found not in known:
            said = getattr(found, "value", found)
            yield f"{name} {said}: {operator} takes {', '.join(each.value for each in known)}"
