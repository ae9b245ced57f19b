"""Cached verdicts, keyed by everything that decides them; GPUs that run the same source share verdicts."""

import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tuner.backends.emulator.compiler import compiler
from tuner.base.assets import PRIMITIVES, TEMPLATES, python_of
from tuner.base.cache import Cache, CacheEntry, digest_of, key_of
from tuner.base.canonical_json import decode, encode
from tuner.compiler import nvrtc
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.results.codec import verdict_from
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical

_PROGRAM = Path(__file__).parents[2]
_JUDGING = (
    "arch",
    "base",
    "results",
    "compiler",
    "evaluate/check",
    "backends",
    "spec",
)  # modules that do not affect verdicts are excluded
_SOURCES = (".py", ".cpp", ".h")
_ASSERTION = re.compile(r"\bstatic_assert\s*\([^;]*;[^\S\n]*\n?")
_CONSTANT = re.compile(r"^constexpr \w+ (\w+) = [^;]*;[^\n]*\n", re.MULTILINE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class VerdictCache:
    """A cache of verdicts. Only ok verdicts are kept; failed configs are checked again."""

    cache: Cache

    @classmethod
    def of_user(cls) -> "VerdictCache":
        return cls(Cache.of("verdict"))

    def find(self, key: str) -> Verdict | None:
        entry = self.cache.get(key)
        return verdict_from(decode(entry.data.decode())) if entry else None

    def keep(self, key: str, verdict: Verdict) -> None:
        if verdict.ok:
            self.cache.put(key, CacheEntry(encode(asdict(verdict)).encode()))


def key(instance: Instance, problems: Sequence[Any], rounds: Iterable[str]) -> str:
    """Return the key of the verdict on a config that runs `problems` in `rounds`.

    It covers the host sources without lines that generate no instruction, the launches, sizes, kinds of inputs and
    modes, and everything that runs and checks: the processor, g++, NumPy, and every file of this program, of the
    emulator and of the operators' Python. It excludes the GPU, except for its tensor-core rounding (in `rounds`), and
    config choices that depend only on another GPU's limits.
    """
    run = [part for problem in problems for part in (canonical(problem), *_run(instance.at(problem)))]
    who = (platform.machine(), compiler().version, np.__version__)
    name = (instance.operator.name, instance.implementation.name)
    return key_of("verdict", *name, *run, *rounds, *who, program(instance.operator.folder.parent))


def key_on_ptx(instance: Instance, problems: Sequence[Any], rounds: Iterable[str]) -> str:
    """Return the same for a config whose PTX runs: its CUDA source, the compiler and its headers."""
    run: list[str] = []
    for edge in map(instance.at, problems):
        source = render(edge)
        run += (canonical(edge.problem), edge.plan().digest, source.digest, nvrtc.made_by(source))
    who = (nvrtc.toolkit().build, np.__version__, program(instance.operator.folder.parent))
    return key_of("verdict", instance.operator.name, instance.implementation.name, *run, *rounds, *who)


def _run(instance: Instance) -> Iterator[str]:
    yield instance.plan().digest
    yield effective(render(instance, "host"))


@lru_cache(maxsize=64)
def effective(source: Source) -> str:
    """Return a digest of a source without assertions, and without constants that only assertions use."""
    headers = "\n".join(f"{name}\n{text}" for name, text in source.headers)
    text, others = _ASSERTION.sub("", source.text), _ASSERTION.sub("", headers)
    names = Counter(_WORD.findall(text)) + Counter(_WORD.findall(others))
    text = _CONSTANT.sub(lambda found: found[0] if names[found[1]] > 1 else "", text)
    return sha256("\0".join((source.target, *source.entries, text, others)).encode()).hexdigest()


@cache
def program(operators: Path) -> str:
    """Return a digest of the files that plan, run and check, read once per process like its modules."""
    runtime = (path for path in PRIMITIVES.rglob("*") if path.is_file() and path.suffix != ".pyc")
    folders = (digest_of(folder, python_of(folder)) for folder in (TEMPLATES, operators))
    return key_of(digest_of(_PROGRAM, judging()), digest_of(PRIMITIVES, runtime), *folders)


def judging() -> tuple[Path, ...]:
    """Return the modules of this program on which a verdict depends."""
    sources = (file for name in _JUDGING for file in (_PROGRAM / name).rglob("*") if file.suffix in _SOURCES)
    return (_PROGRAM / "operators.py", *sources)
