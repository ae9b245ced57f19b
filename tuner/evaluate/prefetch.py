"""Items that a thread produces while the caller works on earlier ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


@contextmanager
def prefetched(source: Iterator[T]) -> Iterator[Iterator[T]]:
    """The items of `source`, drawn by a thread of its own: it begins at once, and goes on while the caller is busy."""
    queue: Queue[Any] = Queue()
    enough = Event()
    thread = Thread(target=_draw, args=(source, queue, enough), daemon=True)
    thread.start()
    try:
        yield _drawn(queue)
    finally:
        enough.set()
        thread.join()


def _drawn(queue: "Queue[Any]") -> Iterator[Any]:
    while (item := queue.get()) is not _END:
        if isinstance(item, _Raised):
            raise item.error
        yield item


def first_item_first(outcomes: Iterator[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """The same, but that of position 0 before all others, which compile meanwhile."""
    early = []
    for outcome in outcomes:
        if outcome[0] == 0:
            yield outcome
            break
        early.append(outcome)
    yield from early
    yield from outcomes


@dataclass(frozen=True)
class _Raised:
    error: BaseException


def _draw(source: Iterator[T], queue: "Queue[Any]", enough: Event) -> None:
    try:
        for item in source:
            queue.put(item)
            if enough.is_set():
                break
    except BaseException as error:  # the caller's to raise
        queue.put(_Raised(error))
    queue.put(_END)
