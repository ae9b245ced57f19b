"""How long what hangs is waited for: jobs that a test knows to hang are given up soon, all others have their time."""

from collections.abc import Callable
from typing import Any

import pytest

from tuner.base import pool

GENEROUS_S = 600.0  # ends a test that hangs, and no other


def given_up_soon(patch: pytest.MonkeyPatch, hangs: Callable[[Any], bool], seconds: float = 0.5) -> None:
    """Of a pool's jobs those that hang; a slow machine does not make others late."""
    give = pool._Worker.give

    def give_for(worker: Any, job: Any, timeout_s: float) -> None:
        give(worker, job, seconds if hangs(job) else timeout_s)

    patch.setattr(pool._Worker, "give", give_for)
