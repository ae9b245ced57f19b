"""What a function that stands in for another library's takes by name, and does not serve."""

from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import InputError


def refuse(function: str, unserved: Mapping[str, Any], theirs: str, why: str = "") -> None:
    """Raises InputError for the first that is neither None nor off; `theirs` serves it."""
    for name, wanted in unserved.items():
        if isinstance(wanted, torch.Tensor) or wanted:
            what = f"{name}={_spelled(wanted)} is not served{f' {why}' * bool(why)}"
            raise InputError(f"{function}: {what}: leave it out, or call {theirs}")


def _spelled(wanted: Any) -> str:
    if isinstance(wanted, torch.Tensor):
        return "a tensor"
    return repr(wanted) if isinstance(wanted, (bool, int, float, str, tuple)) else f"a {type(wanted).__name__}"
