"""The checkout that these programs are in, for a Python that the package is not installed in, and for its children."""

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(1, ROOT)  # behind the programs themselves
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
