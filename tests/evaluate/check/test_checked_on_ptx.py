"""Tests of implementations that are checked on the compiler's PTX: allowed includes, findings, and their source."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.own_operators import Edit, own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.backends import emulator
from tuner.base.assets import PLAIN_EXAMPLE
from tuner.base.cache import Cache
from tuner.cli.app import build
from tuner.compiler import headers, nvrtc
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, TemplateError
from tuner.evaluate.check import checker
from tuner.evaluate.check.verdict_cache import VerdictCache
from tuner.results.attempt import Failed
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

pytestmark = pytest.mark.skipif("cuda_fp16.h" in headers.lacking(), reason="needs the headers of CUDA")
TEMPLATE = "plain/kernel.cu.jinja"


def instance_of(name: str, columns: int = 256) -> Instance:
    operator, implementation = operators.load(name), operators.implementation(name, "plain")
    return Instance.default(operator, implementation, operator.problem(columns=columns), gpu("sm_80").arch)


def verdict_of(place: Path, *edits: Edit) -> Verdict:
    with own_operator(place, *edits, example=PLAIN_EXAMPLE) as name:
        return checker.check(checker.Job(instance_of(name, columns=1024).fields()))


def test_a_kernel_in_plain_cuda_is_right_and_the_verdict_says_what_it_has_not_seen(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path)
    assert verdict.ok, verdict.reason
    assert verdict.where == "PTX for sm_80" and verdict.unseen.startswith("the only races detected are those")
    assert len(verdict.checks) == 3 + 3 + 1  # the last is large, and runs in one order


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        ((TEMPLATE, "f.x * scale * g.x", "f.x * g.x"), "y: RMSE ratio"),
        ((TEMPLATE, "g_y[i] = result", "g_y[i + 1] = result"), r"beyond its end .*st\.global"),
        ((TEMPLATE, "  __syncthreads();\n", ""), r"race: warp \d reads byte \d of shared memory, which warp \d wrote"),
        ((TEMPLATE, "#include <stdint.h>", "#include <nowhere.h>"), "or name its folder in TUNER_INCLUDE"),
        (
            (TEMPLATE, "#include <stdint.h>", "#include <crt/nowhere.h>"),
            r"pip install 'cuda-toolkit\[crt\]', or a CUDA toolkit that CUDA_PATH names",
        ),
    ],
)
def test_a_mistake_is_found(edit: Edit, found: str, tmp_path: Path) -> None:
    wider = (
        "plain/implementation.py",
        '"threads": (32, 64',
        '"threads": (64, 32',
    )  # several warps, which wait for each other
    verdict = verdict_of(tmp_path, edit, wider)
    assert not verdict.ok
    assert re.search(found, verdict.reason), verdict.reason


def test_the_signature_serves_under_nvidias_names(tmp_path: Path) -> None:
    typed = "const __half* __restrict__ x, const __half* __restrict__ w, __half* __restrict__ y, float epsilon"
    edits = (
        (TEMPLATE, typed, "{{ signature.rms_norm_plain }}"),
        (TEMPLATE, "#define N", "using fp16 = __half;\n#define N"),
    )
    assert verdict_of(tmp_path, *edits).ok


def test_parameters_that_are_not_the_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="_plain takes 5 arguments, not 4"):
        verdict_of(tmp_path, (TEMPLATE, "float epsilon) {", "int columns, float epsilon) {"))


def test_what_is_jinjas_has_blanks_around_it(tmp_path: Path) -> None:
    body = "float held2[1][2] = {{0.f, 1.f}}; {#if}\n"
    with own_operator(
        tmp_path,
        (TEMPLATE, "template <int kThreads>", f"// {body}// {{{{ threads }}}}\ntemplate <int kThreads>"),
        example=PLAIN_EXAMPLE,
    ) as name:
        text = render(instance_of(name)).text
    assert f"// {body}// 32\n" in text and '"ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"' in text


def test_a_header_of_ones_own_decides_what_is_compiled_and_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    (library / "mine").mkdir(parents=True)
    (library / "mine" / "tile.h").write_text('#include "deep.h"\n')
    monkeypatch.setenv("TUNER_INCLUDE", str(library))
    results = []
    with own_operator(
        tmp_path, (TEMPLATE, "#include <stdint.h>", "#include <mine/tile.h>"), example=PLAIN_EXAMPLE
    ) as name:
        for i, text in enumerate(("#define DEEP 1\n", "#define DEEP 2\n")):
            (library / "mine" / "deep.h").write_text(text)
            headers._digest.cache_clear()  # as another process would read it
            source = render(instance_of(name))
            cubin = nvrtc.compile(source, Options("sm_80"), Cache(tmp_path / "cache"))
            assert not isinstance(cubin, Failed), (i, cubin.log)
            results.append((source.digest, nvrtc.made_by(source)))
    assert results[0][0] == results[1][0] and results[0][1] != results[1][1]
    assert results[0][1].startswith(f"{nvrtc.toolkit()} headers ")


def test_a_verdict_is_found_again_for_the_same_text_and_arch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_OPERATORS", str(tmp_path))
    with own_operator(tmp_path, example=PLAIN_EXAMPLE) as name:
        job = checker.Job(instance_of(name).fields())
        other = checker.Job(instance_of(name).fields(), arch="sm_90a")
        assert checker.key_of(job) == checker.key_of(job) != checker.key_of(other)
        known = VerdictCache(Cache(tmp_path / "verdicts"))
        known.keep(checker.key_of(job), verdict := checker.check(job))
        assert known.find(checker.key_of(job)) == verdict


def test_a_call_with_numpy_arrays_runs_its_ptx(tmp_path: Path) -> None:
    with own_operator(tmp_path, example=PLAIN_EXAMPLE) as name:
        own = Dispatcher(Snapshot.load([]))
        x = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float16)
        y = own.call(name, x, np.ones(256, np.float16), epsilon=0.5)
        wide = x.astype(float)
        np.testing.assert_allclose(y, wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 0.5), rtol=2e-3)


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ((), r"line \d+: tag name expected; for inline assembly say"),
        (((TEMPLATE, "{%0, %1, %2, %3}", "{ %0, %1, %2, %3 }"),), "#include <cuda_fp16.h>: there are no headers"),
    ],
)
def test_where_the_emulator_compiles_plain_cuda_is_refused_with_the_way_out(
    edits: tuple[Edit, ...], why: str, tmp_path: Path
) -> None:
    emulated = ("plain/implementation.py", ', checked_on="ptx"', "")
    with (
        own_operator(tmp_path, emulated, *edits, example=PLAIN_EXAMPLE) as name,
        pytest.raises(TemplateError, match=rf"plain/kernel\.cu\.jinja.*{why}.*checked_on='ptx'"),
    ):
        render(instance_of(name))


def test_what_the_emulator_does_not_build_names_the_way_out(tmp_path: Path) -> None:
    edit = "block/kernel.cu.jinja", "  DYNAMIC_SHARED(smem);", "  __shared__ float s_more[32];\n  DYNAMIC_SHARED(smem);"
    with own_operator(tmp_path, edit) as name:
        operator, block = operators.load(name), operators.implementation(name, "block")
        instance = Instance.default(operator, block, operator.problem(), gpu("sm_80").arch)
        with pytest.raises(TemplateError, match=r"a static shared variable: .*checked_on='ptx'"):
            emulator.build(render(instance, "host"), checked=False)


def test_a_warm_up_serves_where_the_headers_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    with own_operator(tmp_path, example=PLAIN_EXAMPLE) as name:
        warm = Dispatcher(Snapshot.load([]))
        warm.warmup(name, {"columns": 256}, target=gpu("A100"))
        monkeypatch.setattr(headers, "_of_cuda", lambda: ())
        warm = Dispatcher(Snapshot.load([]))
        warm.warmup(name, {"columns": 256}, target=gpu("A100"))
        with pytest.raises(TemplateError, match=r"cuda_fp16\.h.*pip install 'cuda-toolkit\[cudart\]'"):
            warm.warmup(name, {"columns": 512}, target=gpu("A100"))


def test_another_machine_is_refused(tmp_path: Path) -> None:
    edit = "plain/implementation.py", 'checked_on="ptx"', 'checked_on="gpu"'
    with (
        own_operator(tmp_path, edit, example=PLAIN_EXAMPLE) as name,
        pytest.raises(TemplateError, match="checked_on is 'gpu': say 'emulator' or 'ptx'"),
    ):
        instance_of(name)


def test_the_emulators_source_is_refused_by_a_command_in_words(tmp_path: Path) -> None:
    with own_operator(tmp_path, example=PLAIN_EXAMPLE) as name:
        done = CliRunner().invoke(build(), ["render", name, "--gpu", "sm_80", "--target", "host"])
    assert done.exit_code == 2 and "is checked on PTX: the emulator has no source of it" in done.output
