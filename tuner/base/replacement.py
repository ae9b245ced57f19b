"""Atomic replacement of a file: a reader sees the old contents or the new ones, also if several processes write."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Provide a new, empty file in the folder of `path`, which replaces `path` when the block ends without an error.

    Its name is random and it is created exclusively, so writers do not collide, and a link that another user planted is
    not followed. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
    partial.touch(exist_ok=False)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
