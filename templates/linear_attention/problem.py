"""The problem of linear_attention: sizes, dtype, shape of β, and which states and boundaries there are."""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.errors import UsageError
from tuner.spec import DType, extent, static

from .sizes import Sizes

DTYPES = (DType.BF16, DType.FP16, DType.FP32)
DECAYS = ("scalar", "head", "channel")
MAX_SEQ = 2**30  # positions are int32 in the kernels, with room for one more tile
MAX_ROWS = 2**30  # maximum of sequences · channels: counted in 31 bits, with room for one more block
MAX_ELEMENTS = 2**37  # batch · seq_len · channels, the last rounded up to 256: blocks and flags are counted in 31 bits
MAX_KEY_FLOOR = 60  # e^-60, and its products, stay normal in fp32


@dataclass(frozen=True, slots=True)
class Problem(Sizes):
    """batch sequences of seq_len tokens; each of heads · head_dim channels has a state of two numbers, s and n.

    With varlen, one row of tokens holds boundaries - 1 sequences, which may be empty. Raises UsageError for sizes that
    no kernel supports.
    """

    head_dim: int = static("D: channels of a head, any number", default=128)
    dtype: DType = static("of q, k, v and o", default=DType.BF16, choices=DTYPES)
    decay: str = static("β is one value, one per head, or one per channel", default="scalar", choices=DECAYS)
    use_initial_state: bool = static("the states start at initial_state, not at 0", default=False)
    output_final_state: bool = static("the last states are outputs", default=False)
    varlen: bool = static("sequences of any length are packed, with boundaries cu_seqlens", default=False)
    beta_bound: float = static("upper bound of β; below 1 it allows a short halo", default=1.0)
    key_floor: int = static("keys are clamped to at least -key_floor, which keeps n above 0 in fp32", default=60)
    batch: int = extent("B: sequences; 1 with varlen", default=1)
    seq_len: int = extent("T: tokens of a sequence; with varlen, of all", default=8192)
    heads: int = extent("H", default=96)
    boundaries: int = extent("N + 1: entries of cu_seqlens for N sequences with varlen (0: one sequence)", default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", (self.boundaries or 2) if self.varlen else 0)
        if refusal := next(_refusals(self), None):
            raise UsageError(refusal)

    @property
    def final_states(self) -> int:
        """Number of final states: 0 if they are not requested."""
        return self.sequences * self.output_final_state


def _refusals(problem: Problem) -> Iterator[str]:
    if problem.dtype not in DTYPES:
        name = getattr(problem.dtype, "value", problem.dtype)
        yield f"dtype {name}: linear_attention supports {', '.join(dtype.value for dtype in DTYPES)}"
    if problem.decay not in DECAYS:
        yield f"decay {problem.decay!r}: linear_attention supports {', '.join(DECAYS)}"
    for name in ("head_dim", "batch", "seq_len", "heads"):
        if getattr(problem, name) < 1:
            yield f"{name} {getattr(problem, name)}: linear_attention supports 1 or more"
    if not 0 <= problem.beta_bound <= 1:
        yield f"beta_bound {problem.beta_bound}: β must be between 0 and 1"
    if not 1 <= problem.key_floor <= MAX_KEY_FLOOR:
        yield f"key_floor {problem.key_floor}: linear_attention supports 1 to {MAX_KEY_FLOOR}"
    if problem.varlen and (problem.batch != 1 or problem.boundaries < 2):
        yield f"batch {problem.batch}, boundaries {problem.boundaries}: varlen needs one row and 2 or more boundaries"
    if problem.seq_len > MAX_SEQ or max(problem.batch, problem.sequences) * problem.channels > MAX_ROWS:
        yield (
            f"batch {problem.batch}, heads {problem.heads}, head_dim {problem.head_dim}, seq_len {problem.seq_len}: "
            f"too large; seq_len goes up to {MAX_SEQ}, sequences · heads · head_dim up to {MAX_ROWS}"
        )
    elements = problem.batch * problem.seq_len * -(-problem.channels // 256) * 256
    if elements > MAX_ELEMENTS:
        yield (
            f"batch · seq_len · heads · head_dim, the last two rounded up to 256, is {elements}: "
            f"linear_attention supports up to {MAX_ELEMENTS}"
        )
