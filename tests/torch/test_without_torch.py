"""`import tuner.torch` where PyTorch is not."""

import subprocess
import sys

from tuner.base.assets import ROOT


def test_what_to_install_is_said() -> None:
    code = "import sys; sys.modules['torch'] = None; import tuner.torch"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: tuner.torch needs PyTorch: pip install 'kerntune[torch]'"
