"""Headers that a source includes but does not contain: NVIDIA's, and those in the folders of TUNER_INCLUDE.

They belong to the toolkit, as the compiler does: a source's digest excludes them, and compiled results are cached and
compared with the digest of their text.
"""

import os
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

from tuner.base.assets import PRIMITIVES
from tuner.compiler.source import Source, includes

_NAMED = ("cudart", "cccl")  # as cuda.pathfinder knows them
_WHEELS = {"crt/": "crt", "cuda/": "cccl", "cub/": "cccl", "thrust/": "cccl", "nv/": "cccl", "cccl/": "cccl"}
_VERSION = "cuda/std/__cccl/version.h"  # stands for what a macro names: `#include CUDA_STD_HEADER(tuple)`
_STANDARD = PRIMITIVES / "standard"


def folders() -> tuple[Path, ...]:
    """Include folders in order: TUNER_INCLUDE, then CUDA's wheels or its toolkit."""
    custom = [Path(folder).absolute() for folder in os.environ.get("TUNER_INCLUDE", "").split(os.pathsep) if folder]
    return tuple(dict.fromkeys((*custom, *_of_cuda())))


@cache
def _of_cuda() -> tuple[Path, ...]:
    from cuda.pathfinder import find_nvidia_header_directory

    folders = [Path(folder) for name in _NAMED if (folder := find_nvidia_header_directory(name))]
    return (*folders, *(folder.parent for folder in folders if folder.name == "cccl"))  # CUTLASS says <cccl/cuda/std/…>


def flags(source: Source) -> tuple[str, ...]:
    """Compiler flags for the folders; none for a source that contains all its headers."""
    return tuple(f"-I{folder}" for folder in folders()) if source.foreign else ()


def supplied(source: Source) -> tuple[tuple[str, str], ...]:
    """(include name, text) of headers that replace the C and C++ library, which NVRTC does not have.

    Those of C are in templates/primitives/standard; those of C++ forward to NVIDIA's library in another namespace.
    """
    return (*_standard(), *_renamed(source.foreign)) if source.foreign else ()


def digest(source: Source) -> str:
    """Sixteen hex digits over all headers that the source may include from folders; empty without any."""
    return _digest(source.foreign, folders()) if source.foreign else ""


def lacking() -> tuple[str, ...]:
    """One header of each of NVIDIA's packages that is not installed."""
    return tuple(name for name in ("cuda_fp16.h", "crt/mma.h", "cuda/std/cstdint") if _found(name, None) is None)


def advice(name: str) -> str:
    """Return how to install a missing header."""
    if name.startswith(("cute/", "cutlass/")):
        return "TUNER_INCLUDE=…/cutlass/include names the headers of CUTLASS"
    extra = next((extra for prefix, extra in _WHEELS.items() if name.startswith(prefix)), "")
    if extra or name.startswith(("cuda", "cooperative_groups", "mma.h", "vector_")):
        return f"pip install 'cuda-toolkit[{extra or 'cudart'}]', or a CUDA toolkit that CUDA_PATH names"
    return "put it beside the template, or name its folder in TUNER_INCLUDE"


@cache
def _standard() -> tuple[tuple[str, str], ...]:
    """`math.h` and similar headers, also under names such as `cmath`."""
    ours = sorted(_STANDARD.glob("*.h"))
    plain = ((path.name, path.read_text(encoding="utf-8")) for path in ours)
    return (*plain, *((f"c{path.stem}", f"#include <{path.name}>\n") for path in ours))


def _renamed(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """`type_traits` and similar headers, from NVIDIA's `cuda/std/type_traits`."""
    ours = dict(_standard())
    for name in names:
        if "." not in name and "/" not in name and name not in ours and _found(f"cuda/std/{name}", None):
            yield name, f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"


@lru_cache(maxsize=64)
def _digest(names: tuple[str, ...], _: tuple[Path, ...]) -> str:
    """Digest of all files reachable from `names`, regardless of the preprocessor conditions around includes."""
    carried = dict((*_standard(), *_renamed(names)))
    parts = sha256(repr(sorted(carried.items())).encode())
    seen: set[Path] = set()
    pending: list[tuple[str, Path | None]] = [(name, None) for name in (*names, _VERSION)]
    pending += ((include.name, None) for text in carried.values() for include in includes(text))
    while pending:
        name, beside = pending.pop()
        path = None if name in carried else _found(name, beside)
        if path is None or path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        pending += ((include.name, path.parent if include.quoted else None) for include in includes(text))
    missing = [name for name in names if name not in carried and _found(name, None) is None]
    for content in sorted(path.read_bytes() for path in seen):
        parts.update(sha256(content).digest())
    parts.update(repr(missing).encode())
    return parts.hexdigest()[:16]


def _found(name: str, beside: Path | None) -> Path | None:
    folders_ = (beside, *folders()) if beside else folders()
    return next((path for folder in folders_ if (path := folder / name).is_file()), None)
