"""What a function that stands in for another library's takes by name, and does not serve."""

from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import InputError

# What tells another library's kernels how to run, and changes no result: which of them, in how many parts.
_HINTS = ("deterministic", "fa_version", "num_splits", "pack_gqa", "scheduler_metadata", "sm_margin", "ver")
_OFF = {"cp_world_size": 1}  # what means nothing, besides None, 0 and False


def refuse(function: str, unserved: Mapping[str, Any], theirs: str, why: str = "") -> None:
    """Raises InputError for the first that is neither None nor off; `theirs` serves it."""
    for name, wanted in unserved.items():
        if isinstance(wanted, torch.Tensor) or (wanted and wanted != _OFF.get(name)):
            what = f"{name}={_spelled(wanted)} is not served{f' {why}' * bool(why)}"
            raise InputError(f"{function}: {what}: leave it out, or call {theirs}")


def refuse_others(function: str, others: Mapping[str, Any], theirs: str) -> None:
    """The same of parameters that the function does not name; what cannot change a result is passed over."""
    refuse(function, {name: wanted for name, wanted in others.items() if name not in _HINTS}, theirs)


def _spelled(wanted: Any) -> str:
    if isinstance(wanted, torch.Tensor):
        return "a tensor"
    return repr(wanted) if isinstance(wanted, (bool, int, float, str, tuple)) else f"a {type(wanted).__name__}"
