"""Marks for tests that build or compile kernels of their own, as nearly all cases here do."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run one case of each test in `make test`, but all cases of tests over every operator and implementation."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name != "test_every_operator.py":
            item.add_marker(pytest.mark.sampled(1))
