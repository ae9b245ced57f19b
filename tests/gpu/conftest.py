"""Makes the emulator's micro kernels and the tests beside this folder importable: the device runs the same calls."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "emulator"), str(TESTS)]
