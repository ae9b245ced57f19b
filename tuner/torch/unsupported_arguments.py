"""Keyword arguments of other libraries' functions that raise an error if they are set to a value that has an effect."""

from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import InputError

# hints on how another library's kernels run, which change no result: which kernels, how many splits
_HINTS = ("deterministic", "fa_version", "num_splits", "pack_gqa", "scheduler_metadata", "sm_margin", "ver")
_OFF = {"cp_world_size": 1}  # values without effect, besides None, 0 and False


def refuse(function: str, unserved: Mapping[str, Any], theirs: str, why: str = "") -> None:
    """Raise InputError for the first argument that has an effect; `theirs` supports it."""
    for name, wanted in unserved.items():
        if isinstance(wanted, torch.Tensor) or (wanted and wanted != _OFF.get(name)):
            what = f"{name}={_spelled(wanted)} is not supported{f' {why}' * bool(why)}"
            raise InputError(f"{function}: {what}: leave it out, or call {theirs}")


def refuse_others(function: str, others: Mapping[str, Any], theirs: str) -> None:
    """Do the same for parameters that the function does not name; hints that change no result are ignored."""
    refuse(function, {name: wanted for name, wanted in others.items() if name not in _HINTS}, theirs)


def _spelled(wanted: Any) -> str:
    if isinstance(wanted, torch.Tensor):
        return "a tensor"
    return repr(wanted) if isinstance(wanted, (bool, int, float, str, tuple)) else f"a {type(wanted).__name__}"
