"""Add this checkout to the import path of these programs and of their children, without an installed package."""

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(1, ROOT)  # after the folder of the programs
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
