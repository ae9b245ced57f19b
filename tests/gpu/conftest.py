"""Makes the emulator's micro kernels importable: the device runs the same calls."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "emulator"))
