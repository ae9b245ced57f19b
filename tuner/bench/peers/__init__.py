"""Third-party kernels for an operator: optional packages, run on the same inputs, or absent with a reason.

An operator's peers.py lists them as PEERS, and imports everything for it from here and from `attention`.
"""

from typing import Any

from tuner import operators
from tuner.bench.peers.base import (
    AbsentError,
    Context,
    Peer,
    Run,
    Scalars,
    Tensors,
    captured,
    gpu_torch,
    module,
    to_numpy,
    to_torch,
)
from tuner.bench.peers.ceiling import matmul_tflop_s
from tuner.bench.peers.simulated import Rehearsed
from tuner.errors import TemplateError
from tuner.spec.contract import Complaints, brief, checked, expect_type

__all__ = [
    "AbsentError",
    "Context",
    "Peer",
    "Rehearsed",
    "Run",
    "Scalars",
    "Tensors",
    "captured",
    "context",
    "gpu_torch",
    "matmul_tflop_s",
    "module",
    "of",
    "to_numpy",
    "to_torch",
]


def of(operator: str) -> tuple[Peer, ...]:
    """Return the peers in the operator's peers.py, installed or not; empty without the file.

    Raises UsageError for an unknown operator, and TemplateError for an invalid peers.py.
    """
    declared = operators.peers(operator)
    if declared is None:
        return ()
    listed = getattr(declared, "PEERS", None)
    if not isinstance(listed, tuple) or not all(isinstance(peer, Peer) for peer in listed):
        raise TemplateError(f"{operator}/peers.py must define PEERS, a tuple of Peer, such as (Peer(…),)")
    return listed


def context(operator: str, problem: Any) -> Context | None:
    """Return the context kernel from the operator's peers.py. Raises what `of` raises."""
    declared = getattr(operators.peers(operator), "context", None)
    if declared is None:
        return None
    folder = operators.load(operator).folder
    result: Context | None = checked(declared, f"{operator}/peers.py", folder, "context(problem)", _context)(problem)
    return result


def _context(result: Any, _: Any) -> Complaints:
    yield from expect_type(result, (Context, type(None)), "a Context, or None")
    if result is not None and not isinstance(result.problem, kind := operators.load(result.operator).problem):
        yield f"returned {brief(result.problem)} for {result.operator}: return a {kind.__module__}.{kind.__qualname__}"
