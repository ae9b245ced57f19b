"""CUDA source to cubin without a GPU: NVRTC, a cache, and a pool of worker processes."""

import base64
import re
import time
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from tuner.arch import ARCHES
from tuner.base.cache import Cache, CacheEntry, key_of
from tuner.base.pool import Limits, Lost, Pool
from tuner.base.self_closing import Closing
from tuner.compiler import headers as nvrtc_headers
from tuner.compiler import nvrtc_library
from tuner.compiler.cubin import Cubin, read
from tuner.compiler.nvrtc_library import INSTALL, NvrtcError, Program
from tuner.compiler.source import Source, symbol_lines
from tuner.compiler.toolkit import Options, Toolkit
from tuner.errors import MachineError, UsageError
from tuner.results.attempt import Failed, Stage

__all__ = ["Compiler", "Options", "Toolkit", "arches", "compile", "ptx", "toolkit"]

# NVRTC initialises the driver if there is one, which needs memory beyond the limits; without a device it does not.
_NO_DEVICE = {"CUDA_VISIBLE_DEVICES": ""}
_OUT_OF_MEMORY, _INVALID_OPTION, _NO_BUILTINS = 1, 5, 7  # nvrtcResult
_STARVED = re.compile(
    r"catastrophic error: out of memory|Memory allocation failure"
)  # an internal error, although its status is "compilation"
_LACKING = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')
_OLDEST = (12, 3)  # the first version with __builtin_bit_cast
# The first version whose ptxas neither reuses registers that a wgmma in flight reads nor, since 12.8, loses registers
# in nested divergent branches (release notes of CUDA 13.3).
_FAULTY, _MENDED = (12, 8), (13, 3)
_PROBE = Source(("probe",), 'extern "C" __global__ void probe() {}', (), "cuda")


@cache
def toolkit() -> Toolkit:
    """Return the version of this machine's NVRTC. Raises MachineError, with advice, if there is none, or an old one."""
    version = ".".join(map(str, nvrtc_library.version()))
    if nvrtc_library.version() < _OLDEST:
        raise MachineError(f"NVRTC {version} at {library()} is too old, CUDA 12.3 or later is needed: {INSTALL}")
    with _compiled(_PROBE, (f"-arch=compute_{max(nvrtc_library.supported())}",)) as program:
        # PTX contains the build; NVRTC's own query returns only the version
        build = re.search(rb"release [\d.]+, (V[\d.]+)", program.ptx())
    return Toolkit("nvrtc", version, build[1].decode() if build else "")


def arches() -> tuple[str, ...]:
    """Return those of `ARCHES` for which this machine's NVRTC compiles. Raises MachineError if there is none."""
    supported = nvrtc_library.supported()
    return tuple(name for name, arch in ARCHES.items() if arch.compute_capability in supported)


class CompilerWarning(UserWarning):
    """This version of the compiler is known to miscompile some correct kernels."""


def faulty(version: tuple[int, int] | None = None) -> bool:
    """Return whether a ptxas version (default: the installed one) miscompiles correct kernels by its release notes."""
    return _FAULTY <= (version or nvrtc_library.version()) < _MENDED


def mended() -> bool:
    """Return whether the installed ptxas has all known fixes. Versions before the faulty ones have other faults."""
    return nvrtc_library.version() >= _MENDED


@cache
def _warn_of_faults() -> None:
    """Warn once per process, before the first compilation."""
    if faulty():
        compiler = f"{toolkit()} at {library()}"
        text = f"{compiler} has a ptxas that miscompiles some correct kernels: `tuner doctor` says what to do"
        warnings.warn(text, CompilerWarning, stacklevel=2)


def library() -> str:
    """Return the path of the NVRTC library. Raises MachineError if none is installed."""
    return nvrtc_library.path()


def compile(source: Source, options: Options, cache: Cache | None = None) -> Cubin | Failed:
    """Return the cubin of `source`, from `cache` if possible; Failed if NVRTC or ptxas rejects it.

    It is compiled in this process, which a compiler crash would end: use `Compiler` for sources of unknown quality.
    Raises MachineError without NVRTC, or if it is too old for an arch of `ARCHES`; UsageError for options or arches
    that NVRTC rejects.
    """
    key = _key(source, options)
    if cache and (cached := _cached(cache, key, options)):
        return cached
    _warn_of_faults()
    outcome = _compile(source, options)
    if cache:
        cache.put(key, _entry(outcome))
    return outcome


def made_by(source: Source) -> str:
    """Return the compiler of a source, as stored in results: its name and version, and a digest of foreign headers."""
    headers = nvrtc_headers.digest(source)
    return f"{toolkit()} headers {headers}" if headers else str(toolkit())


def keep(source: Source, cubin: Cubin, cache: Cache) -> None:
    """Store a cubin of `source` in `cache` for machines without a compiler; it replaces that of another compiler."""
    key, compiler = _key_without(source, cubin.options), cubin.toolkit
    about = {"name": compiler.name, "version": compiler.version, "build": compiler.build}
    previous, entry = cache.get(key), _entry(cubin)
    if previous is None or previous.data != entry.data:
        cache.put(key, CacheEntry(entry.data, {**entry.metadata, **about}))


def kept(source: Source, options: Options, cache: Cache) -> Cubin | None:
    """Return the cubin that `keep` stored, of any compiler."""
    entry = cache.get(_key_without(source, options))
    if entry is None:
        return None
    compiler = Toolkit(*(str(entry.metadata[field]) for field in ("name", "version", "build")))
    return _cubin(entry, options, compiler)


def key_without_compiler(source: Source, options: Options) -> str:
    """Return the key under which `keep` stores a cubin."""
    return _key_without(source, options)


def ptx(source: Source, options: Options, cache: Cache | None = None) -> str | Failed:
    """Return the PTX of `source`, from `cache` if possible: the input of ptxas for the arch of `options`.

    Raises as `compile` does.
    """
    key = _key(source, options)
    if cache and (cached := cache.get(key)):
        return cached.data.decode()
    flags = tuple(flag.replace("-arch=sm_", "-arch=compute_") for flag in options.flags)
    try:
        with _compiled(source, flags) as program:
            text = _ptx(program, source)
    except _RefusedError as refusal:
        return Failed(Stage.COMPILE, _first_error(refusal.log), refusal.log)
    if cache:
        cache.put(key, CacheEntry(text))
    return text.decode()


class Compiler(Closing):
    """A context manager that compiles many sources in worker processes, each source at most once.

    Results are stored in `cache` (the user's if None). A worker that crashes or exceeds `limits` returns Failed only
    for its source, which is compiled again the next time; rejections by NVRTC are cached.
    """

    def __init__(self, workers: int | None = None, *, limits: Limits | None = None, cache: Cache | None = None) -> None:
        self._pool: Pool[_Job, Cubin | Failed] = Pool(
            _compile_job, workers=workers, limits=limits, warm=toolkit, environment=_NO_DEVICE
        )
        self._cache = cache or Cache.of("cubin")

    def close(self) -> None:
        self._pool.close()

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the workers."""
        return self._pool.pids()

    def compile_many(self, jobs: Iterable[tuple[Source, Options]]) -> Iterator[tuple[int, Cubin | Failed]]:
        """Yield (position in `jobs`, outcome) in order of completion; `jobs` is consumed as workers become free."""
        batch = _Batch(self._cache)
        for (key, _, _), outcome in self._pool.run(batch.unknown(jobs)):
            yield from batch.known()
            yield from batch.finish(key, outcome)
        yield from batch.known()


_Job = tuple[str, Source, Options]  # key first
_Outcome = Cubin | Failed | Lost


class _Batch:
    """The positions that wait for each key, and the outcomes that need no worker."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._waiting: dict[str, list[int]] = {}
        self._known: deque[tuple[int, Cubin | Failed]] = deque()
        self._unsaved: dict[str, _Outcome] = {}  # outcomes that the cache did not store

    def unknown(self, jobs: Iterable[tuple[Source, Options]]) -> Iterator[_Job]:
        """Yield the jobs to compile, each key once."""
        for position, (source, options) in enumerate(jobs):
            key = _key(source, options)
            if key in self._waiting:
                self._waiting[key].append(position)
            elif outcome := self._unsaved.get(key) or _cached(self._cache, key, options):
                self._known.append((position, _verdict(outcome)))
            else:
                self._waiting[key] = [position]
                _warn_of_faults()
                yield key, source, options

    def known(self) -> Iterator[tuple[int, Cubin | Failed]]:
        while self._known:
            yield self._known.popleft()

    def finish(self, key: str, outcome: _Outcome) -> Iterator[tuple[int, Cubin | Failed]]:
        if isinstance(outcome, Lost) or not self._cache.put(key, _entry(outcome)):
            self._unsaved[key] = outcome
        for position in self._waiting.pop(key):
            yield position, _verdict(outcome)


def _key(source: Source, options: Options) -> str:
    return key_of(source.digest, options.digest, made_by(source), toolkit().build)


def _key_without(source: Source, options: Options) -> str:
    """Return the key of a cubin of any compiler."""
    return key_of(source.digest, options.digest)


def _compile_job(job: _Job) -> Cubin | Failed:
    _, source, options = job
    return _compile(source, options)


def _compile(source: Source, options: Options) -> Cubin | Failed:
    started = time.perf_counter()
    try:
        image, log, text = _invoke(source, options.flags)
    except _RefusedError as refusal:
        return Failed(Stage.COMPILE, _first_error(refusal.log), refusal.log)
    cubin = read(image, log, options, toolkit(), time.perf_counter() - started, text)
    if missing := [name for name in source.entries if name not in cubin.entries]:
        reason = f'the source defines no kernel {missing[0]} (it needs extern "C" __global__)'
        return Failed(Stage.COMPILE, reason, log)
    return cubin


class _RefusedError(Exception):
    """The source does not compile."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


def _invoke(source: Source, flags: tuple[str, ...]) -> tuple[bytes, str, str]:
    """Return (cubin, log, PTX) of one compilation."""
    with _compiled(source, flags) as program:
        log = "\n".join((program.log(), *symbol_lines(_symbols(program, source))))
        return program.cubin(), log, _ptx(program, source).decode()


def _ptx(program: Program, source: Source) -> bytes:
    """Return the PTX, with comments that map C++ names of entries to symbols."""
    return program.ptx() + "".join(f"\n// {line}" for line in symbol_lines(_symbols(program, source))).encode()


def _symbols(program: Program, source: Source) -> dict[str, str]:
    """Return the symbols of the entries that are not extern "C"."""
    return {expression: program.symbol(expression) for expression in source.expressions}


@contextmanager
def _compiled(source: Source, flags: tuple[str, ...]) -> Iterator[Program]:
    """Provide a compiled program, which is destroyed at the end of the context."""
    headers = (*source.headers, *nvrtc_headers.supplied(source))
    with nvrtc_library.program(source.text, headers) as program:
        try:
            for expression in source.expressions:
                program.name(expression)
            program.compile((*flags, *source.flags, *nvrtc_headers.flags(source)))
            yield program
        except NvrtcError as error:
            raise _translated(error, program.log(), flags) from error


def _translated(error: NvrtcError, log: str, flags: tuple[str, ...]) -> Exception:
    if error.status == _INVALID_OPTION and _too_new(flags):
        arch, since = _arch(flags), ".".join(map(str, ARCHES[_arch(flags)].since))
        return MachineError(f"NVRTC {toolkit().version} does not know {arch}, CUDA {since} or later does: {INSTALL}")
    if error.status == _INVALID_OPTION:
        return UsageError(f"NVRTC does not take {' '.join(flags)}: {log}")
    if error.status == _OUT_OF_MEMORY or _STARVED.search(log):
        return MemoryError(f"{error} {log}")
    if error.status == _NO_BUILTINS:
        return MachineError(f"NVRTC at {library()} lacks libnvrtc-builtins ({' '.join(log.split())}): {INSTALL}")
    return _RefusedError(log or f"error: {error}")


def _arch(flags: tuple[str, ...]) -> str:
    return flags[0].removeprefix("-arch=")


def _too_new(flags: tuple[str, ...]) -> bool:
    return _arch(flags) in ARCHES and _arch(flags) not in arches()


def _first_error(log: str) -> str:
    error = re.search(r"^.*\berror\s*:.*$", log, re.MULTILINE)
    first = (error[0] if error else log.partition("\n")[0]).strip()
    if first.startswith("__nv_name_map"):  # an error in a name expression
        undefined = re.search(r'"([^"]+)" is undefined', first)
        return f"the source defines no kernel {undefined[1] if undefined else 'of the name that is launched'}: {first}"
    lacking = _LACKING.search(first)
    return f"{first}: {nvrtc_headers.advice(lacking[1])}" if lacking else first


def _entry(outcome: Cubin | Failed) -> CacheEntry:
    if isinstance(outcome, Failed):
        return CacheEntry(b"", {"reason": outcome.reason, "log": outcome.log})
    packed = base64.b64encode(zlib.compress(outcome.ptx.encode(), 1)).decode()
    return CacheEntry(outcome.image, {"log": outcome.log, "compile_seconds": outcome.compile_seconds, "ptx": packed})


def _cached(cache: Cache, key: str, options: Options) -> Cubin | Failed | None:
    entry = cache.get(key)
    if entry is None or (entry.data and "ptx" not in entry.metadata):  # results stored by earlier versions lack it
        return None
    if not entry.data:
        return Failed(Stage.COMPILE, str(entry.metadata["reason"]), str(entry.metadata["log"]))
    return _cubin(entry, options, toolkit())


def _cubin(entry: CacheEntry, options: Options, compiler: Toolkit) -> Cubin:
    about = entry.metadata
    text = zlib.decompress(base64.b64decode(str(about["ptx"]))).decode() if "ptx" in about else ""
    return read(entry.data, str(about["log"]), options, compiler, float(about["compile_seconds"]), text)


def _verdict(outcome: _Outcome) -> Cubin | Failed:
    return Failed(Stage.COMPILE, outcome.reason, outcome.log) if isinstance(outcome, Lost) else outcome
