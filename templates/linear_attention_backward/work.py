"""What the launches of the implementations move and compute for a problem, counted by formula.

Bytes are exact, and the emulator's counters agree, but for reads of cu_seqlens; instructions are those that the
mathematics needs.
"""

from .problem import Problem

WARP = 32  # lanes
PAIR = 8  # bytes of s and n in fp32


def tensor_bytes(problem: Problem, tensors: float) -> float:
    """So many of q, k, v, do and their gradients."""
    return tensors * problem.elements * problem.dtype.itemsize


def beta_bytes(problem: Problem, channels: int) -> int:
    """Of β that a thread reads for its channels, which share a head."""
    return {"scalar": 0, "head": 4, "channel": 4 * channels}[problem.decay]


def state_bytes(problem: Problem, initial_reads: int, last_reads: int) -> int:
    """Initial states and gradients of final states, read so many times, and gradients of initial states."""
    states = (initial_reads + 1) * problem.initial_states + last_reads * problem.final_states
    return PAIR * problem.channels * states
