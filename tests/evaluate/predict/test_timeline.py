"""Timelines: where a warp's cycles go on each path of a kernel, in order."""

from functools import cache

import pytest
from typer.testing import CliRunner

from tuner import operators
from tuner.arch import gpu
from tuner.base.cache import Cache
from tuner.cli.app import build
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.sass.simulate import simulate_kernel
from tuner.compiler.toolkit import Options
from tuner.evaluate.predict.timeline import ISSUE, Span, Track, timeline
from tuner.spec.instance import Instance

H100 = gpu("H100")
OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=16, batch=1, heads=1, seq_q=128)


@cache
def wgmma() -> tuple[Instance, Cubin]:
    implementation = operators.implementation("flash_attention", "wgmma")
    instance = Instance.default(OPERATOR, implementation, PROBLEM, H100.arch)
    cubin = nvrtc.compile(render(instance), Options("sm_90a"), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    return instance, cubin


def test_warps_that_copy_and_warps_that_multiply_have_tracks_of_their_own() -> None:
    instance, cubin = wgmma()
    loops = [track for track in timeline(cubin, instance.plan().launches, H100) if track.place.startswith("loop")]
    assert {"copies", "products"} <= {track.role for track in loops}


def test_a_track_holds_every_instruction_and_every_stall_of_its_path() -> None:
    instance, cubin = wgmma()
    (entry,) = {launch.entry for launch in instance.plan().launches}
    paths = simulate_kernel(cubin.instructions(entry), H100, 1, 1)
    for track, path in zip(timeline(cubin, instance.plan().launches, H100), paths, strict=True):
        issued = sum(span.cycles for span in track.spans if span.state == ISSUE)
        assert issued == len(path.path.indices)
        assert track.cycles - issued == pytest.approx(sum(stall.cycles for stall in path.stalls))
        assert sum(track.shares.values()) == pytest.approx(1)


def test_a_part_of_a_line_shows_what_lasts_longest_in_it() -> None:
    track = Track("kernel", "computes", "once through", (Span(ISSUE, 10.0), Span("wgmma", 25.0), Span(ISSUE, 5.0)))
    assert track.states(4) == [ISSUE, "wgmma", "wgmma", "wgmma"]  # the last is half of each, and a wait came first
    assert track.states(8) == [ISSUE, ISSUE, *["wgmma"] * 5, ISSUE]


def test_inspect_prints_the_timeline_within_80_columns_and_beside_the_defaults() -> None:
    problem = ("--head-dim", "16", "--batch", "1", "--heads", "1", "--seq-q", "128")
    changed = ("--implementation", "mma_sync", "--config", "lazy_rescale=false")
    done = CliRunner().invoke(build(), ["inspect", "flash_attention", "--gpu", "A100", *problem, *changed])
    assert done.exit_code == 0, done.output
    _, _, rest = done.stdout.partition("timeline of this config")
    lines, _, end = rest.partition("\nmachine code: ")
    assert end and "timeline of the default" in lines and "products, loop" in lines
    assert max(map(len, lines.splitlines()[1:])) <= 80
