"""Bytes of states that the implementations move: exact, and equal to the emulator's counters."""

from ..linear_attention.work import PAIR
from .problem import Problem


def state_bytes(problem: Problem, initial_reads: int, last_reads: int) -> int:
    """Bytes of the initial states and the gradients of final states, read the given number of times, and of the
    gradients of initial states."""
    states = (initial_reads + 1) * problem.initial_states + last_reads * problem.final_states
    return PAIR * problem.channels * states
