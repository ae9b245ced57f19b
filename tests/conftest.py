"""Settings of all tests: no garbage collection of collected tests, the cases that `make test` runs, and shared
fixtures.
"""

import gc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests that are not selected are removed
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep as many evenly spread cases of each `sampled` test as its mark says; mark the others as slow."""
    cases: defaultdict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            cases[item.path, getattr(item, "originalname", item.name)].append(item)
    for case in cases.values():
        (most,) = case[0].get_closest_marker("sampled").args
        kept = {i * len(case) // most for i in range(most)}
        for position, item in enumerate(case):
            if len(case) > most and position not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def own_folder() -> Iterator[None]:
    """Make the operators of tests/support/operators available."""
    from tuner import operators

    folder = Path(__file__).parent / "support" / "operators"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(operators.VARIABLE, "")  # set by add_folder, for processes that these tests start
        operators.add_folder(folder)
        yield
    operators.__path__.remove(str(folder))


@pytest.fixture
def at() -> object:
    """Provide a dispatcher without records."""
    from tuner.dispatcher.calls import Dispatcher
    from tuner.store.records import Snapshot

    return Dispatcher(Snapshot.load([]))


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[object, object]]:
    """Provide a compiler and a checker."""
    from tuner.compiler.nvrtc import Compiler
    from tuner.evaluate.check.checker import Checker

    with Compiler(2) as compiler, Checker(1) as checker:
        yield compiler, checker
