"""Tests of the instruction counts in predictions: one pass of the main loop along its most common path."""

from functools import cache
from math import prod
from pathlib import Path

import pytest

from tuner import operators
from tuner.arch import gpu
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.sass.decode import work_mix
from tuner.compiler.sass.paths import outer_mix, pass_mix, steady_mix
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.spec.instance import Instance

H200 = gpu("H200")
BLACKWELL = Path(__file__).parent / "kernels" / "blackwell.cu"
PRODUCTS = """extern "C" __global__ void products(float* x, unsigned const* a, int n, float most) {{
  float d[4] = {{}};
#pragma unroll 1
  for (int i = 0; i < n; ++i) {{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%0,%1,%2,%3}}, {{%4,%4,%4,%4}}, {{%4,%4}}, "
                 "{{%0,%1,%2,%3}};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[i]));
    {rare}
  }}
  for (int i = 0; i < 4; ++i) x[4 * threadIdx.x + i] = d[i];
}}"""
HIDES = "if (__any_sync(~0u, d[0] > most)) for (int j = 0; j < 32; ++j) d[j % 4] = __fmul_rn(d[j % 4], d[(j + 1) % 4]);"
STORES = "if (__any_sync(~0u, d[0] > most)) for (int j = 0; j < 32; ++j) x[j] = __fmul_rn(d[j % 4], a[j]);"


def compiled(text: str, arch: str) -> Cubin:
    cubin = nvrtc.compile(Source((), text, (), "cuda"), Options(arch), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    return cubin


def products(rare: str, arch: str) -> dict[str, float]:
    return dict(steady_mix(compiled(PRODUCTS.format(rare=rare), arch).instructions("products")))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_what_few_passes_run_is_not_counted(arch: str) -> None:
    always, rarely = products("", arch), products(HIDES, arch)
    assert always["mma"] == rarely["mma"] == 1
    assert rarely.get("fma", 0) <= always.get("fma", 0)
    assert sum(rarely.values()) < sum(always.values()) + 8  # the question, and the branch


def test_a_way_with_accesses_of_its_own_is_counted() -> None:
    assert products(STORES, "sm_90a")["fma"] >= 32


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_lies_around_the_loop_is_found_beside_it(arch: str) -> None:
    before = "float d[4] = {};\n  for (int j = 0; j < 32; ++j) d[j % 4] = __fmaf_rn(d[j % 4], x[j], x[j + 32]);"
    text = PRODUCTS.format(rare="").replace("float d[4] = {};", before)
    result = outer_mix(compiled(text, arch).instructions("products"))
    assert result["fma"] >= 32
    assert result["global"] >= 64
    assert "mma" not in result


@cache
def passes_of_kda_backward() -> dict[str, tuple[float, float]]:
    """By kernel: products of a warp's pass as they are declared, and as they are found."""
    operator, kernel = operators.load("kda_backward"), operators.implementation("kda_backward", "chunked")
    problem = operator.problem()
    config = kernel.default(problem, H200.arch)
    cubin = nvrtc.compile(render(Instance(operator, kernel, problem, config)), Options("sm_90a"), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    launches, works = kernel.plan(problem, config).launches, kernel.work(problem, config, H200)
    return {
        launch.entry: (
            work.mma * work.longest_cta / (prod(launch.grid) * work.warps * work.chain),
            steady_mix(cubin.instructions(launch.entry))["mma"],
        )
        for launch, work in zip(launches, works, strict=True)
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", ["kda_backward_forward", "kda_backward_reverse"])
def test_of_two_ways_that_both_multiply_one_is_a_pass(kernel: str) -> None:
    declared, result = passes_of_kda_backward()[kernel]
    assert result == declared


def test_a_loop_that_ptxas_laid_out_in_parts_is_counted_whole() -> None:
    operator, kernel = operators.load("kda"), operators.implementation("kda", "prep_scan")
    problem = operator.problem(key_dim=192, value_dim=192)
    source = render(Instance.default(operator, kernel, problem, H200.arch))
    cubin = nvrtc.compile(source, Options("sm_90a"), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    loop = max(cubin.innermost_loops("kda_prep"), key=lambda loop: work_mix(loop.mix).get("mma", 0.0))
    assert pass_mix(cubin.instructions("kda_prep"), loop) == {}
    assert steady_mix(cubin.instructions("kda_prep")) == work_mix(loop.mix)


def test_where_one_thread_issues_all_products_the_loop_with_the_exponentials_is_looked_at() -> None:
    mix = steady_mix(compiled(BLACKWELL.read_text(), "sm_100a").instructions("softmax"))
    assert (mix["mufu"], mix["tmem"], mix.get("tcgen05")) == (8, 2, None)
