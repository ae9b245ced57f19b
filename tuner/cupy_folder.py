"""A folder for the cache of kernels that CuPy makes as it is imported: where its own cannot be, the import fails."""

import os
from pathlib import Path

from tuner.cache import spare

_VARIABLE, _USUAL = "CUPY_CACHE_DIR", "~/.cupy/kernel_cache"


def prepare() -> None:
    """To be called before CuPy is imported. Nothing of ours is kept there, so a temporary folder will do."""
    try:
        Path(os.environ.get(_VARIABLE, _USUAL)).expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: nobody knows of a home
        os.environ[_VARIABLE] = str(spare("cupy"))
