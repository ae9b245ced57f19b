"""What kda_backward computes on: the sizes and dtypes of the forward call whose gradients are wanted."""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.dtype import DType, Precision
from tuner.errors import UsageError
from tuner.operator import extent, static

from ..kda.problem import DIMS, DTYPES, INDEX_DTYPES, MAX_BLOCKS, MAX_SEQ
from ..kda.problem import Problem as Forward


@dataclass(frozen=True, slots=True)
class Problem:
    """seq_len tokens a sequence and head; value_heads / heads value heads share a head of q and k.

    The static flags have the names and the meaning of kda's. The last extents follow from them: the first dim of a
    tensor that need not be there, 0 where it is not. Raises UsageError for what no kernel takes.
    """

    key_dim: int = static("K: elements of q, k and g, 16 to 256 in steps of 16", default=128, choices=DIMS)
    value_dim: int = static("V: elements of v and do, 16 to 256 in steps of 16", default=128, choices=DIMS)
    dtype: DType = static("of q, k, v, do and their gradients", default=DType.BF16, choices=DTYPES)
    precision: Precision = static(
        "of the operands of matrix products (dtype: bf16 for 16-bit tensors, fp32 for fp32 ones)",
        default=Precision.DTYPE,
        choices=tuple(Precision),
    )
    gate_dtype: DType = static("of g and dg", default=DType.BF16, choices=DTYPES)
    beta_dtype: DType = static("of beta and dbeta", default=DType.BF16, choices=DTYPES)
    index_dtype: DType = static("of cu_seqlens", default=DType.INT64, choices=INDEX_DTYPES)
    use_cu_seqlens: bool = static("sequences of any lengths are packed into one", default=False)
    use_initial_state: bool = static("the state started at initial_state, and dh0 is wanted", default=False)
    use_final_gradient: bool = static("the final state was used: dht is given", default=False)
    state_v_first: bool = static("states and their gradients are V × K, not K × V", default=False)
    use_qk_l2norm_in_kernel: bool = static("q and k are normalised first", default=False)
    use_beta_sigmoid_in_kernel: bool = static("beta is given before its sigmoid, and dbeta is of that", default=False)
    allow_neg_eigval: bool = static("the sigmoid of beta counts twice", default=False)
    use_gate_in_kernel: bool = static(
        "g is given before its gate, -e^A_log · softplus(g + dt_bias), and dg is of that", default=False
    )
    use_dt_bias: bool = static("there is a dt_bias", default=False)
    use_lower_bound: bool = static("that gate is lower_bound · sigmoid(e^A_log · (g + dt_bias))", default=False)
    safe_gate: bool = static("g >= -5 is promised; otherwise any g <= 0 is safe, at some cost", default=False)
    batch: int = extent("B: sequences", default=1)
    seq_len: int = extent("T: tokens of a sequence", default=8192)
    heads: int = extent("H: heads of q and k", default=64)
    value_heads: int = extent("HV: heads of v, g, beta and do, a multiple of heads (0: as many)", default=0)
    boundaries: int = extent("N + 1: entries of cu_seqlens for N sequences; 0 without", default=0)
    initial_states: int = extent("follows: sequences with use_initial_state, else 0", default=0)
    final_states: int = extent("follows: sequences with use_final_gradient, else 0", default=0)
    gate_heads: int = extent("follows: value_heads with use_gate_in_kernel, else 0", default=0)
    bias_heads: int = extent("follows: value_heads with use_dt_bias, else 0", default=0)

    def __post_init__(self) -> None:
        if self.precision is Precision.FP32 and self.dtype is DType.FP32:  # one problem, one name
            object.__setattr__(self, "precision", Precision.DTYPE)
        object.__setattr__(self, "value_heads", self.value_heads or self.heads)
        object.__setattr__(self, "boundaries", max(self.boundaries, 2) * self.use_cu_seqlens)
        object.__setattr__(self, "initial_states", self.sequences * self.use_initial_state)
        object.__setattr__(self, "final_states", self.sequences * self.use_final_gradient)
        object.__setattr__(self, "gate_heads", self.value_heads * self.use_gate_in_kernel)
        object.__setattr__(self, "bias_heads", self.value_heads * self.use_dt_bias)
        if refusal := next(_refusals(self), None):
            raise UsageError(refusal)

    @property
    def sequences(self) -> int:
        """N: how many sequences there are, each with a state a head."""
        return self.boundaries - 1 if self.use_cu_seqlens else self.batch

    @property
    def operands(self) -> str:
        """What operands of matrix products are rounded to: bf16, tf32 or fp32."""
        return self.forward().operands

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

    def pieces(self, tokens: int) -> int:
        """Pieces of so many tokens that a batch's head falls into; with packed sequences, what any lengths may need."""
        return self.seq_len // tokens + self.sequences if self.use_cu_seqlens else -(-self.seq_len // tokens)

    @property
    def group(self) -> int:
        """Value heads that share a head of q and k, and add up to its gradients."""
        return self.value_heads // self.heads

    def forward(self) -> Forward:
        """The call of kda whose gradients these are."""
        return Forward(
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            dtype=self.dtype,
            precision=self.precision,
            gate_dtype=self.gate_dtype,
            beta_dtype=self.beta_dtype,
            index_dtype=self.index_dtype,
            use_cu_seqlens=self.use_cu_seqlens,
            boundaries=self.boundaries,
            use_initial_state=self.use_initial_state,
            output_final_state=self.use_final_gradient,
            state_v_first=self.state_v_first,
            use_qk_l2norm_in_kernel=self.use_qk_l2norm_in_kernel,
            use_beta_sigmoid_in_kernel=self.use_beta_sigmoid_in_kernel,
            allow_neg_eigval=self.allow_neg_eigval,
            use_gate_in_kernel=self.use_gate_in_kernel,
            use_dt_bias=self.use_dt_bias,
            use_lower_bound=self.use_lower_bound,
            safe_gate=self.safe_gate,
            batch=self.batch,
            seq_len=self.seq_len,
            heads=self.heads,
            value_heads=self.value_heads,
        )


def _refusals(problem: Problem) -> Iterator[str]:
    for name in ("key_dim", "value_dim"):
        if getattr(problem, name) not in DIMS:
            yield f"{name} {getattr(problem, name)}: kda_backward takes 16 to 256 in steps of 16"
    for name in ("dtype", "gate_dtype", "beta_dtype"):
        if getattr(problem, name) not in DTYPES:
            found = getattr(getattr(problem, name), "value", getattr(problem, name))
            yield f"{name} {found}: kda_backward takes {', '.join(each.value for each in DTYPES)}"
    if problem.precision not in tuple(Precision):
        yield f"precision {problem.precision}: kda_backward takes {', '.join(each.value for each in Precision)}"
    if problem.index_dtype not in INDEX_DTYPES:
        known = ", ".join(each.value for each in INDEX_DTYPES)
        yield f"index_dtype {problem.index_dtype.value}: kda_backward takes {known}"
    if problem.use_cu_seqlens and problem.batch != 1:
        yield f"batch {problem.batch}: cu_seqlens packs all sequences into a batch of 1"
    for name in ("batch", "seq_len", "heads"):
        if getattr(problem, name) < 1:
            yield f"{name} {getattr(problem, name)}: kda_backward takes 1 and more"
    if problem.heads > 0 and problem.value_heads % problem.heads:
        yield f"value_heads {problem.value_heads} is no multiple of heads {problem.heads}"
    if problem.allow_neg_eigval and not problem.use_beta_sigmoid_in_kernel:
        yield "allow_neg_eigval scales the kernel's sigmoid: set use_beta_sigmoid_in_kernel, or pass beta in (0, 2)"
    if (problem.use_dt_bias or problem.use_lower_bound) and not problem.use_gate_in_kernel:
        yield "dt_bias and lower_bound are of the kernel's gate: set use_gate_in_kernel, or pass g as it decays"
    if max(problem.sequences, problem.value_heads) > MAX_BLOCKS or problem.seq_len > MAX_SEQ:
        yield (
            f"sequences {problem.sequences}, value_heads {problem.value_heads}, seq_len {problem.seq_len}: too large; "
            f"sequences and value_heads go up to {MAX_BLOCKS}, seq_len up to {MAX_SEQ}"
        )
