"""A base class for context managers that close themselves."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that returns itself and calls `close` on exit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Closing twice is allowed."""
