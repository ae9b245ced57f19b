"""What is collected stays until the end: no search for garbage among it, at first or later; and what several files of
tests set up alike."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def own_folder() -> Iterator[None]:
    """The operators of tests/support/operators are found."""
    from tuner import operators

    folder = Path(__file__).parent / "support" / "operators"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(operators.VARIABLE, "")  # which add_folder sets, for processes that these tests start
        operators.add_folder(folder)
        yield
    operators.__path__.remove(str(folder))


@pytest.fixture
def at() -> object:
    """A dispatcher without records."""
    from tuner.dispatcher.calls import Dispatcher
    from tuner.store.records import Snapshot

    return Dispatcher(Snapshot.load([]))


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[object, object]]:
    """What compiles configs, and what checks them."""
    from tuner.compiler.nvrtc import Compiler
    from tuner.evaluate.check.checker import Checker

    with Compiler(2) as compiler, Checker(1) as checker:
        yield compiler, checker
