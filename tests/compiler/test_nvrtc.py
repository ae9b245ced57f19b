"""Tests of compiling for absent GPUs: NVRTC's messages, the cache, and failures within a batch."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.base.test_pool import alive, wait_until
from tests.support.patience import given_up_soon
from tuner.arch import ARCHES
from tuner.base.assets import ROOT
from tuner.base.cache import Cache
from tuner.base.pool import Limits
from tuner.compiler import nvrtc, nvrtc_library
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options, Toolkit
from tuner.errors import UsageError
from tuner.results.attempt import Failed, Stage

HOPPER = Options("sm_90a")
FILL = 'extern "C" __global__ void fill(float* x, float v) { x[blockIdx.x * blockDim.x + threadIdx.x] = v; }'
ENDLESS = """template <int N, long M> struct Tree {
  static constexpr int v = Tree<N - 1, 2 * M>::v + Tree<N - 1, 2 * M + 1>::v;
};
template <long M> struct Tree<0, M> { static constexpr int v = 1; };
extern "C" __global__ void endless(int* x) { *x = Tree<40, 1>::v; }"""  # 2^40 types


def source(text: str, *entries: str, headers: tuple[tuple[str, str], ...] = ()) -> Source:
    return Source(entries, text, headers, "cuda")


def fill(variant: int = 0) -> Source:
    return source(f"{FILL}  // {variant}", "fill")


def outcomes(
    jobs: Iterable[tuple[Source, Options]], cache: Cache, limits: Limits | None = None
) -> dict[int, Cubin | Failed]:
    with Compiler(2, cache=cache, limits=limits) as compiler:
        return dict(compiler.compile_many(jobs))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_a_compiler_needs_no_cupy() -> None:
    code = "import sys; from tuner.compiler import nvrtc; nvrtc.toolkit(); print('cupy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_toolkit_is_named_by_version_and_told_apart_by_build() -> None:
    result = nvrtc.toolkit()
    assert str(result) == f"nvrtc {result.version}"
    assert result.build.startswith(f"V{result.version}.")
    assert result == Toolkit("nvrtc", result.version)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_kernel_compiles_for_every_arch(arch: str) -> None:
    cubin = nvrtc.compile(fill(), Options(arch))
    assert isinstance(cubin, Cubin)
    assert cubin.entries["fill"].registers > 0 and cubin.instruction_mix("fill")["STG.32"] == 1


def test_headers_need_no_file_system() -> None:
    headers = (("lanes.cuh", '#include "deeper/width.cuh"\nconstexpr int kLanes = kWidth;'),
               ("deeper/width.cuh", "constexpr int kWidth = 32;"))  # fmt: skip
    text = '#include "lanes.cuh"\nextern "C" __global__ void k(int* x) { static_assert(kLanes == 32); *x = kLanes; }'
    assert isinstance(nvrtc.compile(source(text, "k", headers=headers), HOPPER), Cubin)


def test_constexpr_functions_need_no_annotation() -> None:
    text = 'constexpr int row(int i) { return i / 4; }\nextern "C" __global__ void k(int* x) { *x = row(*x); }'
    assert isinstance(nvrtc.compile(source(text, "k"), HOPPER), Cubin)


def test_division_is_ieee_unless_fast_math_is_asked_for() -> None:
    text = 'extern "C" __global__ void k(float* x) { x[0] = x[1] / x[2]; }'
    exact, fast = (nvrtc.compile(source(text, "k"), Options("sm_90a", fast_math=on)) for on in (False, True))
    assert isinstance(exact, Cubin) and isinstance(fast, Cubin)
    assert "FCHK" in exact.instruction_mix("k") and "FCHK" not in fast.instruction_mix("k")


def test_a_bound_on_registers_is_kept() -> None:
    text = """extern "C" __global__ void k(float* x) { float a[64], r = 0;
      for (int i = 0; i < 64; ++i) a[i] = x[i * 99];
      __syncthreads();
      for (int i = 0; i < 64; ++i) x[i] = a[63 - i] + r++; }"""
    free, bound = (nvrtc.compile(source(text, "k"), Options("sm_90a", maxrregcount=n)) for n in (0, 32))
    assert isinstance(free, Cubin) and isinstance(bound, Cubin)
    assert bound.entries["k"].registers <= 32 < free.entries["k"].registers


def test_options_differ_by_digest_and_read_as_flags() -> None:
    options = Options("sm_90a", maxrregcount=128, lineinfo=True, extra=("-DX=1",))
    assert (
        str(options) == "-arch=sm_90a -std=c++17 -default-device --ptxas-options=-v -maxrregcount=128 -lineinfo -DX=1"
    )
    assert len({variant.digest for variant in (options, Options("sm_90a"), Options("sm_100a"))}) == 3


def test_a_syntax_error_is_a_failure_with_the_whole_log() -> None:
    failed = nvrtc.compile(source("int x = ;\nint y = z;\nint w = ;", "k"), HOPPER)
    assert isinstance(failed, Failed) and failed.stage is Stage.COMPILE
    assert failed.reason == "kernel.cu(1): error: expected an expression"
    assert all(f"kernel.cu({line}): error" in failed.log for line in (1, 2, 3))


def test_what_ptxas_refuses_is_a_failure_too() -> None:
    failed = nvrtc.compile(
        source('extern "C" __global__ void k() { asm("wgmma.fence.sync.aligned;"); }', "k"), Options("sm_80")
    )
    assert isinstance(failed, Failed) and "'wgmma.fence' not supported" in failed.reason


def test_a_missing_header_is_named() -> None:
    failed = nvrtc.compile(source('#include "nowhere.cuh"', "k"), HOPPER)
    assert isinstance(failed, Failed) and "nowhere.cuh" in failed.reason


def test_a_source_without_the_kernel_it_promises_is_a_failure() -> None:
    failed = nvrtc.compile(source(FILL, "fill", "drain"), HOPPER)
    assert isinstance(failed, Failed) and "no kernel drain" in failed.reason


@pytest.mark.parametrize("options", [Options("sm_12"), Options("sm_90a", extra=("--nonsense",))])
def test_an_option_that_nvrtc_does_not_know_is_the_callers_mistake(options: Options) -> None:
    with pytest.raises(UsageError, match=r"sm_12|--nonsense"):
        nvrtc.compile(fill(), options)


def test_an_arch_that_came_after_this_nvrtc_names_the_cuda_that_knows_it() -> None:
    code = """
from tuner import errors; from tuner.compiler import nvrtc, nvrtc_library
nvrtc_library.supported = lambda: (50, 80, 86, 87, 89, 90)  # CUDA 12.6
from tuner.compiler.source import Source
print(*nvrtc.arches())
for arch in "sm_120a", "sm_103a", "sm_110a":
    try: nvrtc.compile(Source(("k",), "", (), "cuda"), nvrtc.Options(arch, extra=("--as-good-as-unknown",)))
    except errors.MachineError as e: print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    known, *messages = done.stdout.splitlines()
    assert known == "sm_80 sm_86 sm_87 sm_89 sm_90a"
    for message, release in zip(
        messages, ("sm_120a, CUDA 12.8", "sm_103a, CUDA 12.9", "sm_110a, CUDA 13.0"), strict=True
    ):
        assert f"does not know {release} or later does: pip install" in message


def test_an_nvrtc_that_is_too_old_for_the_kernels_is_named_with_its_place() -> None:
    code = """
from tuner import errors; from tuner.compiler import nvrtc, nvrtc_library
nvrtc_library.version = lambda: (12, 2)
try: nvrtc.toolkit()
except errors.MachineError as e: print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.match(r"NVRTC 12\.2 at /\S+ is too old, CUDA 12\.3 or later is needed: pip install", done.stdout)


def test_the_library_that_compiles_can_be_named() -> None:
    assert Path(nvrtc.library()).is_file() and "nvrtc" in Path(nvrtc.library()).name


def test_the_library_that_compiles_is_the_one_that_is_named() -> None:
    code = (
        "from tuner.compiler import nvrtc; print(nvrtc.toolkit() and nvrtc.library(), open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    named, loaded = done.stdout.split()[0], re.findall(r"/\S+/libnvrtc\.so\S*", done.stdout)
    assert set(loaded) == {named}


@pytest.mark.parametrize(
    ("absent", "named"),
    [
        ("def gone(name): raise cuda.pathfinder.DynamicLibNotFoundError(name)\n"
         "cuda.pathfinder.load_nvidia_dynamic_lib = gone", "(nvrtc)"),
        ("import sys; sys.modules['cuda.bindings'] = None", "cuda.bindings"),
    ],
    ids=["library", "bindings"],
)  # fmt: skip
def test_a_missing_compiler_names_what_to_install(absent: str, named: str) -> None:
    code = f"""
import cuda.pathfinder
{absent}
from tuner import errors; from tuner.compiler import nvrtc
try: nvrtc.toolkit()
except errors.MachineError as e: print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pip install 'kerntune[cuda13]'" in done.stdout and done.stdout.count("\n") == 1
    assert named in done.stdout


def test_an_nvrtc_without_its_builtins_is_named_with_its_place(tmp_path: Path) -> None:
    """As where the library alone was copied."""
    alone = tmp_path / Path(nvrtc.library()).name
    alone.symlink_to(nvrtc.library())
    code = """
from tuner import errors; from tuner.compiler import nvrtc
try: nvrtc.toolkit()
except errors.MachineError as e: print(e)
"""
    where = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"} | {
        "LD_PRELOAD": str(alone)
    }
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=where, capture_output=True, text=True, check=True)
    if not done.stdout:
        pytest.skip("the system's loader knows these builtins")
    assert done.stdout.startswith(f"NVRTC at {alone} lacks libnvrtc-builtins (") and done.stdout.count("\n") == 1
    assert "pip install 'kerntune[cuda13]'" in done.stdout


def test_a_cached_cubin_is_the_compiled_one(cache: Cache) -> None:
    fresh = nvrtc.compile(fill(), HOPPER, cache)
    cached = nvrtc.compile(fill(), HOPPER, cache)
    assert cached == fresh and isinstance(fresh, Cubin) and isinstance(cached, Cubin)
    assert (cached.log, cached.compile_seconds) == (fresh.log, fresh.compile_seconds)  # of that one compilation


def test_a_truncated_cache_entry_is_compiled_again(cache: Cache) -> None:
    fresh = nvrtc.compile(fill(), HOPPER, cache)
    (path,) = cache.root.rglob("*.entry")
    path.write_bytes(path.read_bytes()[:2000])
    assert nvrtc.compile(fill(), HOPPER, cache) == fresh
    assert path.stat().st_size > 2000


def test_a_refusal_is_remembered(cache: Cache) -> None:
    refused = nvrtc.compile(source("nonsense", "k"), HOPPER, cache)
    assert cache.size().entries == 1
    assert nvrtc.compile(source("nonsense", "k"), HOPPER, cache) == refused


def test_a_batch_answers_every_position_and_compiles_each_source_once(cache: Cache) -> None:
    jobs = [(fill(i % 3), HOPPER) for i in range(9)] + [(source("nonsense", "k"), HOPPER)]
    result = outcomes(jobs, cache)
    assert sorted(result) == list(range(10)) and isinstance(result[9], Failed)
    assert cache.size().entries == 4
    assert all(result[i] == result[i % 3] for i in range(9))


def test_a_batch_that_is_known_starts_no_process(cache: Cache) -> None:
    outcomes([(fill(), HOPPER)], cache)
    with Compiler(2, cache=cache) as compiler:
        assert len(list(compiler.compile_many([(fill(), HOPPER)] * 50))) == 50
        assert compiler.pids() == ()


def test_a_cache_that_cannot_be_written_costs_no_second_compilation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def jobs() -> Iterator[tuple[Source, Options]]:
        yield from [(fill(1), HOPPER), (fill(2), HOPPER), (fill(3), HOPPER), (fill(1), HOPPER), (fill(1), HOPPER)]

    with pytest.warns(RuntimeWarning, match="cannot write to the cache"):
        result = outcomes(jobs(), Cache(tmp_path / "file" / "cache"))
    assert len(result) == 5
    seconds = {result[i].compile_seconds for i in (0, 3, 4)}  # type: ignore[union-attr]
    assert len(seconds) == 1  # one compilation, told three times


def test_endless_templates_cost_their_own_config_only(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up_soon(monkeypatch, lambda job: "endless" in str(job), 0.5)
    jobs = [(fill(), HOPPER), (source(ENDLESS, "endless"), HOPPER), (fill(1), HOPPER)]
    result = outcomes(jobs, cache)
    assert result[1] == Failed(Stage.COMPILE, "no answer within 0.5 s")
    assert isinstance(result[0], Cubin) and isinstance(result[2], Cubin)
    assert cache.size().entries == 2  # another machine, or another day, may be fast enough


def test_a_compiler_that_takes_too_much_memory_is_stopped_and_not_remembered(cache: Cache) -> None:
    result = outcomes([(source(ENDLESS, "endless"), HOPPER), (fill(), HOPPER)], cache, Limits(memory_bytes=640 << 20))
    failed = result[0]
    assert isinstance(failed, Failed) and failed.reason == "out of memory: it needs more than 0.625 GiB"
    assert isinstance(result[1], Cubin) and cache.size().entries == 1


def test_a_compiler_does_not_see_the_devices_of_the_machine(cache: Cache) -> None:
    with Compiler(workers=1, cache=cache) as compiler:
        list(compiler.compile_many([(fill(), HOPPER)]))
        (pid,) = compiler.pids()
        assert b"CUDA_VISIBLE_DEVICES=" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_a_compiler_that_is_killed_is_replaced(cache: Cache) -> None:
    with Compiler(1, cache=cache) as compiler:
        list(compiler.compile_many([(fill(), HOPPER)]))
        (pid,) = compiler.pids()
        threading.Thread(target=kill_as_it_compiles, args=(pid,)).start()
        result = dict(compiler.compile_many([(source(ENDLESS, "endless"), HOPPER), (fill(1), HOPPER)]))
    assert result[0] == Failed(Stage.COMPILE, "the process was killed by SIGKILL")
    assert isinstance(result[1], Cubin)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_it_compiles(pid: int) -> None:
    before = cpu_seconds(pid)
    wait_until(lambda: cpu_seconds(pid) > before + 0.2)


def kill_as_it_compiles(pid: int) -> None:
    wait_until_it_compiles(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_compiler_ends_with_its_caller_in_the_middle_of_a_compilation(cache: Cache) -> None:
    code = f"""
from pathlib import Path
from tuner.base.cache import Cache
from tuner.compiler.nvrtc import Compiler, Options
from tuner.compiler.source import Source
with Compiler(1, cache=Cache(Path({str(cache.root)!r}))) as compiler:
    jobs = [Source(("fill",), {FILL!r}, (), "cuda"), Source(("endless",), {ENDLESS!r}, (), "cuda")]
    for _ in compiler.compile_many((job, Options("sm_90a")) for job in jobs):
        print(*compiler.pids(), flush=True)
"""
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert caller.stdout
    pid = int(caller.stdout.readline())
    wait_until_it_compiles(pid)
    caller.kill()
    caller.communicate()
    wait_until(lambda: not alive(pid))


def test_two_processes_compile_the_same_source_into_one_entry(cache: Cache) -> None:
    code = f"""
from pathlib import Path
from tuner.base.cache import Cache
from tuner.compiler.nvrtc import compile, Options
from tuner.compiler.source import Source
print(compile(Source(("fill",), {FILL!r}, (), "cuda"), Options("sm_90a"), Cache(Path({str(cache.root)!r}))).sass_digest)
"""
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = {process.communicate()[0] for process in both}
    assert len(digests) == 1 and [process.returncode for process in both] == [0, 0]
    assert cache.size().entries == 1
    assert isinstance(nvrtc.compile(source(FILL, "fill"), HOPPER, cache), Cubin)


def asked(named: object, code: str) -> subprocess.CompletedProcess[str]:
    """A program that runs with TUNER_NVRTC."""
    environment = os.environ | {nvrtc_library.VARIABLE: str(named)}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)


NAMES_AND_COMPILES = """
from tuner.compiler import nvrtc
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
text = 'extern "C" __global__ void fill(float* x) { *x = 1.0f; }'
print(nvrtc.library(), type(nvrtc.compile(Source(("fill",), text, (), "cuda"), Options("sm_90a"))).__name__)
print(*{each.split()[-1] for each in open("/proc/self/maps") if "libnvrtc" in each})
"""


def test_the_library_that_is_named_is_used_with_the_builtins_beside_it(tmp_path: Path) -> None:
    own = Path(nvrtc.library()).parent
    for path in own.glob("libnvrtc*.so.*"):
        shutil.copy(path, tmp_path)
    (named,) = tmp_path.glob("libnvrtc.so.*")
    done = asked(named, NAMES_AND_COMPILES)
    assert done.stdout.splitlines()[0] == f"{named} Cubin", done.stderr
    assert {Path(part).parent for part in done.stdout.splitlines()[1].split()} == {tmp_path}


def test_what_is_no_such_library_is_one_message(tmp_path: Path) -> None:
    own, text = Path(nvrtc.library()), tmp_path / "libnvrtc.so.13"
    alone = tmp_path / "alone" / own.name
    alone.parent.mkdir()
    shutil.copy(own, alone)
    text.write_text("no library")
    (tmp_path / "libnvrtc-builtins.so.13.5").write_text("nor this")
    reasons = {tmp_path / "nothing": "is no file", alone: "has no libnvrtc-builtins", text: "cannot be loaded"}
    for named, reason in reasons.items():
        done = asked(named, "from tuner.compiler import nvrtc; nvrtc.toolkit()")
        last = done.stderr.splitlines()[-1]
        assert last.startswith("tuner.errors.MachineError: TUNER_NVRTC=") and reason in last


def test_another_library_that_was_loaded_before_is_named(tmp_path: Path) -> None:
    own = Path(nvrtc.library())
    for path in own.parent.glob("libnvrtc*.so.*"):
        shutil.copy(path, tmp_path)
    code = f"import ctypes; ctypes.CDLL({str(own)!r}); from tuner.compiler import nvrtc; nvrtc.toolkit()"
    done = asked(tmp_path / own.name, code)
    assert f"but {own} is used" in done.stderr.splitlines()[-1]


def test_a_compiler_that_miscompiles_is_warned_of_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "faulty", lambda: True)
    nvrtc._warn_of_faults.cache_clear()
    try:
        with pytest.warns(nvrtc.CompilerWarning, match="tuner doctor") as caught:
            nvrtc.compile(fill(1), HOPPER, cache)
            nvrtc.compile(fill(2), HOPPER, cache)
        assert len(caught) == 1
    finally:
        nvrtc._warn_of_faults.cache_clear()


@pytest.mark.parametrize(
    ("version", "faulty"),
    [((12, 6), False), ((12, 8), True), ((12, 9), True), ((13, 2), True), ((13, 3), False), ((13, 5), False)],
)
def test_versions_with_bugs_that_miscompile_are_known(version: tuple[int, int], faulty: bool) -> None:
    assert nvrtc.faulty(version) is faulty
