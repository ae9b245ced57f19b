"""Other people's kernels for our operators: optional packages, run on the same inputs, or absent with a reason.

A module that has the name of an operator lists its peers as PEERS.
"""

from importlib import import_module
from importlib.util import find_spec

from tuner.bench.peers.base import AbsentError, Peer, Run, captured, gpu_torch, to_numpy, to_torch
from tuner.bench.peers.ceiling import matmul_tflop_s

__all__ = ["AbsentError", "Peer", "Run", "captured", "gpu_torch", "matmul_tflop_s", "of", "to_numpy", "to_torch"]


def of(operator: str) -> tuple[Peer, ...]:
    """The peers of an operator that this program knows of, installed or not."""
    name = f"{__name__}.{operator}"
    if find_spec(name) is None:
        return ()
    found: tuple[Peer, ...] = import_module(name).PEERS
    return found
