"""Sizes derived from the fields of a problem, and unsupported problems, shared by kda and its backward pass."""

from collections.abc import Iterator

from tuner.spec import DType, Precision

DIMS = tuple(range(16, 257, 16))
DTYPES = (DType.BF16, DType.FP16, DType.FP32)
INDEX_DTYPES = (DType.INT64, DType.INT32)
MAX_BLOCKS = 65535  # limit of a grid's second and third dims: heads and sequences
MAX_SEQ = 2**30  # positions are int32 in the kernels, with room for one more chunk


class Sizes:
    """Base class of a Problem, which defines these fields."""

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
        """Set dependent fields, so that equal problems have equal fields; call in __post_init__."""
        if self.precision is Precision.FP32 and self.dtype is DType.FP32:
            object.__setattr__(self, "precision", Precision.DTYPE)
        object.__setattr__(self, "value_heads", self.value_heads or self.heads)
        object.__setattr__(self, "boundaries", max(self.boundaries, 2) * self.use_cu_seqlens)

    @property
    def sequences(self) -> int:
        """N: number of sequences, each with one state per head."""
        return self.boundaries - 1 if self.use_cu_seqlens else self.batch

    @property
    def operands(self) -> str:
        """Precision of the operands of matrix products: bf16, tf32 or fp32."""
        if self.precision is Precision.DTYPE:
            return "fp32" if self.dtype is DType.FP32 else "bf16"
        return self.precision.value

    @property
    def state_rows(self) -> int:
        """The outer dim of a stored state."""
        return self.value_dim if self.state_v_first else self.key_dim

    @property
    def state_columns(self) -> int:
        """The inner dim of a stored state."""
        return self.key_dim if self.state_v_first else self.value_dim

    @property
    def mean_len(self) -> int:
        """Tokens of a sequence: seq_len, or the mean of packed sequences, whose lengths are known only at run time."""
        return -(-self.batch * self.seq_len // self.sequences)

    # The first dims of optional tensors: 0 if they are absent.

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
    """Why no kernel of the operator supports the problem: nothing if one does."""
    for name, supported in (("key_dim", DIMS), ("value_dim", DIMS)):
        if getattr(problem, name) not in supported:
            yield f"{name} {getattr(problem, name)}: {operator} supports 16 to 256 in steps of 16"
    yield from _unknown(problem, operator)
    if problem.use_cu_seqlens and problem.batch != 1:
        yield f"batch {problem.batch}: cu_seqlens packs all sequences into a batch of 1"
    for name in ("batch", "seq_len", "heads"):
        if getattr(problem, name) < 1:
            yield f"{name} {getattr(problem, name)}: {operator} supports 1 or more"
    if problem.heads > 0 and problem.value_heads % problem.heads:
        yield f"value_heads {problem.value_heads} is not a multiple of heads {problem.heads}"
    if max(problem.sequences, problem.value_heads) > MAX_BLOCKS or problem.seq_len > MAX_SEQ:
        yield (
            f"sequences {problem.sequences}, value_heads {problem.value_heads}, seq_len {problem.seq_len}: too large; "
            f"sequences and value_heads go up to {MAX_BLOCKS}, seq_len up to {MAX_SEQ}"
        )
    if problem.allow_neg_eigval and not problem.use_beta_sigmoid_in_kernel:
        yield "allow_neg_eigval scales the kernel's sigmoid: set use_beta_sigmoid_in_kernel, or pass beta in (0, 2)"
    if (problem.use_dt_bias or problem.use_lower_bound) and not problem.use_gate_in_kernel:
        yield "dt_bias and lower_bound need the gate in the kernel: set use_gate_in_kernel, or apply the gate to g"


def _unknown(problem: Sizes, operator: str) -> Iterator[str]:
    choices = dict.fromkeys(("dtype", "gate_dtype", "beta_dtype"), DTYPES)
    for name, supported in (*choices.items(), ("precision", tuple(Precision)), ("index_dtype", INDEX_DTYPES)):
        value = getattr(problem, name)
        if value not in supported:
            shown = getattr(value, "value", value)
            yield f"{name} {shown}: {operator} supports {', '.join(choice.value for choice in supported)}"
