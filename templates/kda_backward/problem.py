"""The problem of kda_backward: the sizes and dtypes of the forward call to differentiate."""

from dataclasses import dataclass

from tuner.errors import UsageError
from tuner.spec import DType, Precision, common_fields, extent, static

from ..kda.problem import Problem as Forward
from ..kda.sizes import DIMS, DTYPES, INDEX_DTYPES, Sizes, refusals


@dataclass(frozen=True, slots=True)
class Problem(Sizes):
    """seq_len tokens per sequence and head; value_heads / heads value heads share a head of q and k.

    The static flags have the names and meaning of those of kda. Raises UsageError for sizes that no kernel supports.
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
    use_initial_state: bool = static("the state started at initial_state, and dh0 is returned", default=False)
    use_final_gradient: bool = static("the final state was used: dht is passed", default=False)
    state_v_first: bool = static("states and their gradients are V × K, not K × V", default=False)
    use_qk_l2norm_in_kernel: bool = static("q and k are normalized first", default=False)
    use_beta_sigmoid_in_kernel: bool = static("beta is passed before its sigmoid, as is dbeta", default=False)
    allow_neg_eigval: bool = static("the sigmoid of beta is doubled", default=False)
    use_gate_in_kernel: bool = static(
        "g is passed before its gate, -e^A_log · softplus(g + dt_bias), as is dg", default=False
    )
    use_dt_bias: bool = static("there is a dt_bias", default=False)
    use_lower_bound: bool = static("that gate is lower_bound · sigmoid(e^A_log · (g + dt_bias))", default=False)
    safe_gate: bool = static("g >= -5 is guaranteed; otherwise any g <= 0 is safe, at some cost", default=False)
    batch: int = extent("B: sequences", default=1)
    seq_len: int = extent("T: tokens per sequence", default=8192)
    heads: int = extent("H: heads of q and k", default=64)
    value_heads: int = extent("HV: heads of v, g, beta and do, a multiple of heads (0: equal to heads)", default=0)
    boundaries: int = extent("N + 1: entries of cu_seqlens for N sequences; 0 without", default=0)

    def __post_init__(self) -> None:
        self.settle()
        if refusal := next(refusals(self, "kda_backward"), None):
            raise UsageError(refusal)

    @property
    def final_states(self) -> int:
        """Number of final states: 0 if their gradient is not passed."""
        return self.sequences * self.use_final_gradient

    def pieces(self, tokens: int) -> int:
        """Pieces of `tokens` tokens per batch entry and head; with packed sequences, the maximum over all lengths."""
        return self.seq_len // tokens + self.sequences if self.use_cu_seqlens else -(-self.seq_len // tokens)

    @property
    def group(self) -> int:
        """Value heads that share a head of q and k, and contribute to its gradients."""
        return self.value_heads // self.heads

    def forward(self) -> Forward:
        """The forward problem."""
        return Forward(**common_fields(self, Forward), output_final_state=self.use_final_gradient)
