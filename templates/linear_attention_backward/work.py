"""Bytes of states that the implementations move: exact, and the emulator's counters agree."""

from ..linear_attention.work import PAIR
from .problem import Problem


def state_bytes(problem: Problem, initial_reads: int, last_reads: int) -> int:
    """Initial states and gradients of final states, read so many times, and gradients of initial states."""
    states = (initial_reads + 1) * problem.initial_states + last_reads * problem.final_states
    return PAIR * problem.channels * states
