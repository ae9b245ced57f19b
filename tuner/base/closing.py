"""What a `with` block closes when it ends."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that is what it gives."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds. Closing twice is no error."""
