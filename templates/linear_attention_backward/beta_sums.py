"""The launch that sums the contributions of tiles, or sequences, to the gradient of β; none if β is a scalar."""

from collections.abc import Mapping

from tuner.spec import DType, Launch, Scalar, Work, Workspace

from ..linear_attention.tiles import WARP
from .problem import Problem

ENTRY = "linear_attention_backward_beta"
THREADS = 128
_UNROLL = 8  # parts that a thread loads at once


def constants(problem: Problem) -> Mapping[str, Scalar]:
    """The constants of its template."""
    parts = "beta_parts" if problem.use_beta else "nullptr"
    return {"beta_array": problem.use_beta, "beta_threads": THREADS, "beta_parts_argument": parts}


def launch(problem: Problem) -> tuple[Launch, ...]:
    names = ("dbeta", "batch", "seq_len", "heads", "boundaries", "beta_parts")
    return (Launch(ENTRY, (problem.heads, 1, 1), THREADS, 8 * THREADS, names),) * problem.use_beta


def parts(problem: Problem, rows: int) -> tuple[Workspace, ...]:
    """`rows` rows of one number per channel."""
    return (Workspace("beta_parts", DType.FP32, (rows, problem.channels)),) * problem.use_beta


def part_bytes(problem: Problem, rows: int) -> int:
    """Bytes of all parts."""
    return sum(workspace.nbytes for workspace in parts(problem, rows))


def work(problem: Problem, rows: int) -> tuple[Work, ...]:
    """Work of `launch`: all parts are read."""
    added = rows * problem.channels / WARP
    nbytes = part_bytes(problem, rows) + 4 * problem.beta_heads * problem.beta_channels
    shared = problem.decay == "head"
    work = Work(
        ctas=problem.heads,
        warps=THREADS // WARP,
        fma=added,
        alu=3 * added,
        smem_wavefronts=shared * problem.heads * 6 * THREADS / WARP,
        l2_bytes=nbytes,
        dram_bytes=0,
        barriers=shared * problem.heads * (THREADS.bit_length() - 1),
        chain=-(-rows // _UNROLL) * -(-problem.head_dim // THREADS),
    )
    return (work,) * problem.use_beta
