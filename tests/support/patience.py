"""Time limits for hanging jobs: short for jobs that a test expects to hang, normal for all others."""

from collections.abc import Callable
from typing import Any

import pytest

from tuner.base import pool

GENEROUS_S = 600.0  # ends a test that hangs, and no other


def given_up_soon(patch: pytest.MonkeyPatch, hangs: Callable[[Any], bool], seconds: float = 0.5) -> None:
    """A pool's limits by job: only the expected ones are short, so that a slow machine fails no other job."""
    give = pool._Worker.give

    def give_for(worker: Any, job: Any, timeout_s: float) -> None:
        give(worker, job, seconds if hangs(job) else timeout_s)

    patch.setattr(pool._Worker, "give", give_for)
