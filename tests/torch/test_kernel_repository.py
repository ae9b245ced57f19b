"""Tests of the repository for Hugging Face's `kernels`."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tuner.torch  # noqa: E402
from tuner.torch.kernel_repository import write  # noqa: E402


def test_its_module_has_the_functions_of_the_package(tmp_path: Path) -> None:
    variant = write(tmp_path / "kernel") / "build" / "torch-universal"
    spec = spec_from_file_location("kerntune", variant / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.__all__ == tuner.torch.__all__
    assert module.flash_attn_func is tuner.torch.flash_attn_func


@pytest.mark.skipif(find_spec("kernels") is None, reason="needs kernels: pip install kernels")
def test_kernels_loads_it(tmp_path: Path) -> None:
    import kernels

    module = kernels.get_local_kernel(write(tmp_path))
    assert module.flash_attn_func is tuner.torch.flash_attn_func
