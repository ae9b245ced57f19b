"""Tests of `import tuner.torch`, `tuner.transformers` and `tuner.jax` without the library."""

import subprocess
import sys

import pytest

from tuner.base.assets import ROOT


@pytest.mark.parametrize(
    ("library", "called"), [("torch", "PyTorch"), ("transformers", "transformers"), ("jax", "JAX")]
)
def test_what_to_install_is_said(library: str, called: str) -> None:
    code = f"import sys; sys.modules['{library}'] = None; import tuner.{library}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: tuner.{library} needs {called}: pip install {library}"
