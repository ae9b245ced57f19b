"""The problem of kda: sizes, dtypes, and which optional steps run inside the kernel."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from tuner.errors import UsageError
from tuner.spec import DType, Precision, extent, static

from .sizes import DIMS, DTYPES, INDEX_DTYPES, Sizes, refusals


@dataclass(frozen=True, slots=True)
class Problem(Sizes):
    """seq_len tokens per sequence and head; value_heads / heads value heads share a head of q and k.

    The static flags have the names and meaning of the arguments of FLA's `chunk_kda`, and those of the pool of its
    `fused_recurrent_kda_fwd`. Raises UsageError for sizes that no kernel supports.
    """

    key_dim: int = static("K: elements of q, k and g, 16 to 256 in steps of 16", default=128, choices=DIMS)
    value_dim: int = static("V: elements of v and o, 16 to 256 in steps of 16", default=128, choices=DIMS)
    dtype: DType = static("of q, k, v and o", default=DType.BF16, choices=DTYPES)
    precision: Precision = static(
        "of the operands of matrix products (dtype: bf16 for 16-bit tensors, fp32 for fp32 ones)",
        default=Precision.DTYPE,
        choices=tuple(Precision),
    )
    gate_dtype: DType = static("of g", default=DType.BF16, choices=DTYPES)
    beta_dtype: DType = static("of beta", default=DType.BF16, choices=DTYPES)
    index_dtype: DType = static("of cu_seqlens", default=DType.INT64, choices=INDEX_DTYPES)
    use_cu_seqlens: bool = static("sequences of any lengths are packed into one", default=False)
    use_initial_state: bool = static("the state starts at initial_state, not at 0", default=False)
    output_final_state: bool = static("the last state is an output", default=False)
    inplace_final_state: bool = static("the states are in a pool and updated in place", default=False)
    use_state_indices: bool = static("sequences have an index of their entry of the pool, or none", default=False)
    state_v_first: bool = static("states are V × K, not K × V", default=False)
    use_qk_l2norm_in_kernel: bool = static("q and k are normalized first", default=False)
    use_beta_sigmoid_in_kernel: bool = static("beta is passed before its sigmoid", default=False)
    allow_neg_eigval: bool = static("the sigmoid of beta is doubled", default=False)
    use_gate_in_kernel: bool = static("g is passed before its gate, -e^A_log · softplus(g + dt_bias)", default=False)
    use_dt_bias: bool = static("there is a dt_bias", default=False)
    use_lower_bound: bool = static("that gate is lower_bound · sigmoid(e^A_log · (g + dt_bias))", default=False)
    safe_gate: bool = static("g >= -5 is guaranteed; otherwise any g <= 0 is safe, at some cost", default=False)
    batch: int = extent("B: sequences", default=1)
    seq_len: int = extent("T: tokens per sequence", default=8192)
    heads: int = extent("H: heads of q and k", default=64)
    value_heads: int = extent("HV: heads of v, g, beta and o, a multiple of heads (0: equal to heads)", default=0)
    boundaries: int = extent("N + 1: entries of cu_seqlens for N sequences; 0 without", default=0)
    pool_states: int = extent("P: entries of the pool of states (0: one per sequence); 0 without", default=0)

    def __post_init__(self) -> None:
        self.settle()
        object.__setattr__(self, "pool_states", (self.pool_states or self.sequences) * self.inplace_final_state)
        if refusal := next(chain(refusals(self, "kda"), _pool_refusals(self)), None):
            raise UsageError(refusal)

    @property
    def final_states(self) -> int:
        """Number of final states: 0 if they are not an output, or are in a pool."""
        return self.sequences * self.output_final_state

    @property
    def state_indices(self) -> int:
        """Number of indices of states: 0 if sequences have none."""
        return self.sequences * self.use_state_indices


def _pool_refusals(problem: Problem) -> Iterator[str]:
    if problem.use_state_indices and not problem.inplace_final_state:
        yield "state indices need a pool of states: set inplace_final_state"
    if problem.inplace_final_state and (problem.use_initial_state or problem.output_final_state):
        yield "the pool of inplace_final_state holds both states: drop use_initial_state and output_final_state"
    if problem.inplace_final_state and not problem.use_state_indices and problem.pool_states != problem.sequences:
        yield f"pool_states {problem.pool_states}: without indices there must be one per sequence, {problem.sequences}"
