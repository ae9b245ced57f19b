"""A repository on disk that Hugging Face's `kernels` loads (0.17), with the functions of this package as a kernel.

from tuner.torch.kernel_repository import write
write("kerntune-kernel")
kernel = kernels.get_local_kernel(Path("kerntune-kernel"))
o = kernel.flash_attn_func(q, k, v)
"""

import json
from pathlib import Path

_NAME = "kerntune"
_MODULE = '''"""The functions of tuner.torch, as a kernel."""

from tuner.torch import *  # noqa: F403
from tuner.torch import __all__  # noqa: F401
'''
_METADATA = {"name": _NAME, "id": _NAME, "version": 1, "license": "Apache-2.0", "python-depends": []}


def write(folder: Path | str) -> Path:
    """Write the repository into a folder, which is created, and return its path.

    It has one variant, `torch-universal`, for every version of torch and every device: the module imports this package,
    which must be installed.
    """
    variant = Path(folder) / "build" / "torch-universal"
    variant.mkdir(parents=True, exist_ok=True)
    (variant / "__init__.py").write_text(_MODULE)
    # `kernels` requires a backend; a variant named universal is loaded on any.
    (variant / "metadata.json").write_text(json.dumps({**_METADATA, "backend": {"type": "cpu"}}))
    return Path(folder)
