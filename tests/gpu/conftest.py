"""The device of these tests; it is skipped after a kernel has hung on it."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.gpu import driver
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.worker import Worker


@pytest.fixture(autouse=True)
def _usable() -> None:
    """Nothing is asked of a device that an earlier kernel hangs on: the answer would never come."""
    if driver.lost:
        pytest.fail(f"not run: {driver.lost[0]}")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """The device's own process."""
    with Worker(Physical()) as started:
        yield started


def pytest_unconfigure() -> None:
    """All is told by now, and to unload a module is to wait for the kernel that hangs."""
    if driver.lost:
        sys.stdout.flush()
        os._exit(1)
