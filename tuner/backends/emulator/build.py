"""Builds of the emulator with g++: the runtime library, precompiled primitives, and kernels as shared objects. All
cached.
"""

import atexit
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tuner.backends.emulator.compiler import compiler, run
from tuner.base.assets import PRIMITIVES
from tuner.base.cache import Cache, CacheEntry, digest_of, key_of, make_folder, remove
from tuner.compiler.render import header
from tuner.compiler.source import COMMENT, Source
from tuner.errors import MachineError, TemplateError

NATIVE = Path(__file__).with_name("native")  # the C++ sources of the runtime library
_MACHINE = platform.machine()
_COMMON = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",  # a shared object with unique symbols can never be unloaded
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",  # CUDA code reinterprets memory
    "-fno-stack-protector",
    "-fno-math-errno",
    "-ffp-contract=off",
    *{
        "x86_64": ("-fcf-protection=none", "-mavx2", "-mfma", "-mf16c", "-mbmi2"),
        "aarch64": ("-mbranch-protection=none",),
    }.get(_MACHINE, ()),
)
# Aligned because otherwise any change moves the hot loops, which costs or gains 4 % of the run time.
_RUNTIME = (*_COMMON, "-O2", "-falign-functions=64", "-falign-loops=32", "-shared")
# -Og code runs as fast as -O1 code, because the emulator's own code dominates, and compiles in two thirds of the time.
# Register allocation without loop information saves another fifth: a kernel is one function with everything inlined.
# Omitting branch prediction saves 3 to 9 % more, and costs less than 1 % of the run time.
_KERNEL = (
    *_COMMON,
    "-Og",
    "-fira-region=one",
    "-fno-guess-branch-probability",
    "-g1",  # line numbers for faults
    "-fno-plt",  # PLT code has no line numbers, and a signal may interrupt a loop over a barrier there
    "-fstack-clash-protection",
    "-w",
    *{
        # The guard of a stack is one page, which may have 4 KB. x86-64 traps by itself.
        "aarch64": (
            "--param=stack-clash-protection-guard-size=12",
            "-fsanitize=integer-divide-by-zero",
            "-fsanitize-undefined-trap-on-error",
        ),
    }.get(_MACHINE, ()),
)
_CHECKED = (
    "-fsanitize=thread",  # calls the runtime's hook for every access
    "--param=tsan-instrument-func-entry-exit=0",
    "-fno-tree-pta",  # otherwise accesses that seem local are not instrumented
    "-fsanitize=bounds,shift",
    "-fsanitize-undefined-trap-on-error",
    "-ftrivial-auto-var-init=pattern",
)
_UMBRELLA = "primitives.h"
_NOT_EMULATED = {
    re.compile(r"\b(?:asm|__asm__)\b[^;]*"): "inline PTX, which templates/primitives wraps",
    re.compile(r"\b__shared__\b[^;]*"): "a static shared variable: allocate it from DYNAMIC_SHARED, which is checked",
    re.compile(r"\bcooperative_groups\b"): "cooperative groups: use cluster.cuh for clusters",
}


@cache
def runtime_library() -> Path:
    """Build the emulator's runtime as a shared library, and return its path."""
    key = key_of("runtime", compiler().version, *_RUNTIME, _primitives_digest())
    includes = (f"-I{PRIMITIVES / 'host'}", f"-I{PRIMITIVES}")

    def build(folder: Path) -> Path:
        output = folder / "runtime.so"
        libraries = ("-ldl", "-lrt")  # part of the C library since glibc 2.34
        run(
            [
                compiler().path,
                *_RUNTIME,
                *includes,
                str(NATIVE / "runtime.cpp"),
                *libraries,
                "-o",
                str(output),
            ]
        )
        return output

    return _cached(key, build)


def shared_object(source: Source, *, checked: bool) -> Path:
    """Compile the kernels of a `host` source. Raises TemplateError with g++'s output if they do not compile."""
    if source.target != "host":
        raise TemplateError(f"the emulator runs sources rendered for 'host', not for {source.target!r}")
    flags = (*_KERNEL, *_CHECKED) if checked else _KERNEL
    key = key_of("kernel", source.digest, compiler().version, *flags, _primitives_digest())
    return _cached(key, lambda folder: _compile(source, flags, folder))


def symbol(entry: str) -> str:
    """Return the symbol of a kernel in the shared object; C++ may name it by an expression."""
    return re.sub(r"\W+", "_", entry)


def _compile(source: Source, flags: tuple[str, ...], folder: Path) -> Path:
    _refuse(source)
    primitives = _primitives(flags)
    kernel, output = folder / f"{symbol(source.entries[0])}.cu", folder / "kernel.so"
    entries = "".join(f"EMULATOR_ENTRY({symbol(entry)}, {entry})\n" for entry in source.entries)
    entries += "".join(f"EMULATOR_SYMBOL({constant})\n" for constant in source.constants)
    kernel.write_text(f'#line 1 "{kernel.name}"\n{source.text}\n#include "entry.cuh"\n{entries}', encoding="utf-8")
    own = {name: text for name, text in source.headers if primitives.texts.get(name) != text}
    _write_headers(folder, own)
    precompiled = () if own.keys() & primitives.texts.keys() else ("-include", str(primitives.folder / _UMBRELLA))
    command = [compiler().path, *flags, *precompiled, f"-ffile-prefix-map={folder}/=", f"-I{folder}"]
    command += [f"-I{primitives.folder}", "-x", "c++", str(kernel), "-o", str(output)]
    command += ["-shared", "-nostdlib", "-lm", "-lc", "-lgcc"]  # omit libtsan, which -fsanitize=thread would link
    try:
        run(command)
    except MachineError as error:
        raise TemplateError(f"g++ does not compile {', '.join(source.entries)}: {error}") from error
    return output


def _refuse(source: Source) -> None:
    own = [(name, text) for name, text in source.headers if not (PRIMITIVES / "host" / name).exists()]
    for name, text in ((f"{symbol(source.entries[0])}.cu", source.text), *own):
        code = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)  # keep the line numbers
        for pattern, what in _NOT_EMULATED.items():
            if match := pattern.search(code):
                line = code.count("\n", 0, match.start()) + 1
                way = "or say Implementation(…, checked_on='ptx'): then its PTX is checked, which detects fewer races"
                raise TemplateError(f"{name}:{line}: not emulated: {match[0][:80]!r}, {what}; {way}")


@dataclass(frozen=True)
class _Primitives:
    """The host primitives in one folder, with a precompiled umbrella header beside them."""

    folder: Path
    texts: Mapping[str, str]


def _primitives(flags: tuple[str, ...]) -> _Primitives:
    texts = _primitive_texts()
    key = key_of("primitives", compiler().version, *flags, _primitives_digest())

    def build(folder: Path) -> None:
        _precompile(folder, texts, flags)

    with _alone(key):
        folder = _in_cache(key, build) or _private().folder(key, build)
    assert folder is not None, "a folder that was just made takes another"
    return _Primitives(folder, texts)


def _in_cache(key: str, build: Callable[[Path], object]) -> Path | None:
    """Return None if the cache cannot be written or its disk is full; other g++ errors recur in the private build."""
    with suppress(MachineError, OSError):
        return Cache.of("emulator").folder(key, build)
    return None


def _precompile(folder: Path, texts: Mapping[str, str], flags: tuple[str, ...]) -> None:
    _write_headers(folder, texts)
    (folder / _UMBRELLA).write_text("".join(f'#include "{name}"\n' for name in texts if "/" not in name))
    output = folder / f"{_UMBRELLA}.gch"
    run([compiler().path, *flags, f"-I{folder}", "-x", "c++-header", str(folder / _UMBRELLA), "-o", str(output)])


@cache
def _primitive_texts() -> Mapping[str, str]:
    """Return include name → text of every header that a host source can include."""
    paths = [
        *PRIMITIVES.glob("*.cuh"),
        *(PRIMITIVES / "host").glob("*.cuh"),
        *(PRIMITIVES / "host").glob("*.cuh.jinja"),
    ]
    names = sorted({path.name.removesuffix(".jinja") for path in paths})
    return {name: header(name, PRIMITIVES, "host") for name in (*names, "runtime_api.h")}


@cache
def _primitives_digest() -> str:
    host = (path for path in (PRIMITIVES / "host").rglob("*") if path.is_file())
    primitives = digest_of(PRIMITIVES, (*PRIMITIVES.glob("*.cuh"), *host))
    return key_of(primitives, digest_of(NATIVE, NATIVE.iterdir()))


def _write_headers(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _cached(key: str, build: Callable[[Path], Path]) -> Path:
    """Build a file as a cache entry, or as a private copy if the cache cannot be written."""
    store = Cache.of("emulator")
    if store.get(key) is None:
        with _alone(key):
            return store.path(key) if store.get(key) else _built(store, key, build)
    return store.path(key)


def _built(store: Cache, key: str, build: Callable[[Path], Path]) -> Path:
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        data = build(Path(folder)).read_bytes()
    store.put(key, CacheEntry(data))
    if store.get(key) is None:
        store = _private()
        store.put(key, CacheEntry(data))
    return store.path(key)


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """Make other processes that need the same build wait and then reuse it. Locks end with their process."""
    from filelock import FileLock  # the import takes 14 ms, which an application with built kernels need not pay

    # The cache removes lock files of killed processes.
    path = Cache.of("emulator").path(key).with_suffix(".lock.partial")
    with ExitStack() as held:
        with suppress(OSError):  # the cache cannot be written, or the file system has no locks
            make_folder(path.parent)  # before FileLock creates it with group write permission
            held.enter_context(FileLock(path, fallback_to_soft=False))
            held.callback(remove, path)  # before the release: a waiting process creates it again
        yield


@cache
def _private() -> Cache:
    """Return a cache for this process, used if the user's cache cannot be written."""
    folder = tempfile.mkdtemp(prefix="tuner-emulator-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Cache(Path(folder))
