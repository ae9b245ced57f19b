"""The device of these tests; tests after a kernel that hangs fail at once."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.gpu import driver
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.worker import Worker


@pytest.fixture(autouse=True)
def _usable() -> None:
    """Fail the test at once if an earlier kernel hangs on the device."""
    if driver.lost:
        pytest.fail(f"not run: {driver.lost[0]}")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Provide the device in a process of its own."""
    with Worker(Physical()) as started:
        yield started


def pytest_unconfigure() -> None:
    """End the process without unloading modules, which would wait for a hanging kernel."""
    if driver.lost:
        sys.stdout.flush()
        os._exit(1)
