"""Where a page goes when nobody says: a name of what it is about, in the folder of reports."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from tuner.base.assets import REPORTS
from tuner.spec.command_line import minimal_fields
from tuner.spec.problem import canonical

_LONGEST = 150  # characters of a name; file systems take 255 bytes
_ODD = re.compile(r"[^A-Za-z0-9_.+-]")  # what a text of a problem may hold, and a file's name had better not


def default_path(about: str, gpu: str, problems: Sequence[Any]) -> Path:
    """`reports/out/<about>-<gpu>-<problem>.html`, in a checkout or else in the current folder.

    Of a problem the name has the fields that are not the default; equal problems have equal names, others have others.
    """
    folder = REPORTS / "out" if (REPORTS.parent / "pyproject.toml").is_file() else Path("reports/out")
    told = [canonical(each) for each in problems]
    words = _words(problems[0]) if len(problems) == 1 else [f"{len(problems)}_problems", _digest(told)]
    name = "-".join([about, gpu.replace(" ", "_"), *words])
    plain = _ODD.sub("_", name)
    if plain != name or len(name) > _LONGEST:
        plain = f"{plain[:_LONGEST]}-{_digest([about, gpu, *told])}"
    return folder / f"{plain}.html"


def _words(problem: Any) -> list[str]:
    """`["head_dim_72", "causal"]`"""
    told = minimal_fields(problem).items()
    return [name if value is True else f"no_{name}" if value is False else f"{name}_{value}" for name, value in told]


def _digest(words: Sequence[str]) -> str:
    return sha256("\n".join(words).encode()).hexdigest()[:8]
