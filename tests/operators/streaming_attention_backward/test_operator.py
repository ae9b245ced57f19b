"""streaming_attention_backward: its mathematics, its kernels on the emulator, what they do, and how it is called."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention_backward.slope import gradients_and_slopes
from tests.support.claims import assert_no_spills, assert_right_on_tails, drawn
from tests.support.counted import declared_and_counted, global_bytes
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.bench import peers
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED
from tuner.operators.flash_attention_backward import operator as dense
from tuner.operators.flash_attention_backward.problem import Problem as DenseProblem
from tuner.operators.streaming_attention import operator as forward
from tuner.operators.streaming_attention_backward.mma_sync import implementation as mma_sync
from tuner.operators.streaming_attention_backward.mma_sync.config import Config
from tuner.operators.streaming_attention_backward.operator import OPERATOR, streaming_attention_backward
from tuner.operators.streaming_attention_backward.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

HOPPER = ARCHES["sm_90a"]
H200 = gpu("H200")
SMALL = Problem(head_dim=16, dtype=DType.FP16, batch=1, heads=4, kv_heads=2, seq_q=9, seq_k=12, window=4, sinks=2)
CONFIG = Config(64, 32, 4, 2, 1, 1, 64, 32, 4, 2, 1, narrow=16, BM_sink=32, sink_warps=2, sink_stages=2, sink_splits=4)
draw = partial(drawn, OPERATOR, kind="normal")


@pytest.mark.parametrize("lse_used", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_k", "window", "sinks"), [(9, 12, 4, 2), (7, 5, 2, 1), (6, 6, 9, 3)])
def test_the_reference_is_the_derivative_of_the_forward_reference(
    seq_q: int, seq_k: int, window: int, sinks: int, lse_used: bool
) -> None:
    sizes = {"seq_q": seq_q, "seq_k": seq_k, "window": window, "sinks": sinks}
    problem = replace(SMALL, use_lse_gradient=lse_used, **sizes)
    both = gradients_and_slopes(OPERATOR, problem, draw(problem), partial(forward.reference, problem.forward))
    for gradient, slope in both:
        assert gradient == pytest.approx(slope, rel=1e-7)


def test_a_window_over_everything_has_the_gradients_of_causal_attention() -> None:
    problem = replace(SMALL, window=12)
    fields = {name: getattr(problem, name) for name in ("head_dim", "dtype", "batch", "heads", "kv_heads")}
    causal = DenseProblem(**fields, seq_q=9, seq_k=12, causal=True)
    arrays = draw(problem)
    reference, right = OPERATOR.reference(problem, arrays), dense.reference(causal, arrays)
    assert all(np.array_equal(reference[name], right[name]) for name in reference)


def test_a_query_without_a_key_and_a_key_without_a_query_have_no_gradient() -> None:
    late = OPERATOR.reference(problem := replace(SMALL, seq_q=7, seq_k=5), draw(problem))
    assert not late["dq"][:, :2].any()
    few = OPERATOR.reference(problem := replace(SMALL, seq_q=2, seq_k=30), draw(problem))
    assert not few["dk"][:, 2:25].any()
    assert few["dk"][:, 25].all()


@pytest.mark.parametrize(
    ("head_dim", "config"),
    [
        (8, replace(CONFIG, BN_kv=32, kv_warps=2, BM_kv=16, BN_q=16, narrow=0, BM_sink=16, sink_warps=1)),
        # 32 rows per warp, three slots, more splits than tiles
        (40, replace(CONFIG, kv_warps=2, kv_stages=3, q_warps=2, q_stages=3, sink_warps=1, sink_splits=128)),
        (104, replace(CONFIG, BN_kv=32, kv_warps=2, kv_slices=3, sink_splits=1)),  # 13 column tiles in slices of 6
    ],
)
def test_gradients_are_right_for_every_make_of_tiles(head_dim: int, config: Config) -> None:
    problem = Problem(head_dim=head_dim)
    assert_right_on_tails(Instance(OPERATOR, mma_sync.IMPLEMENTATION, problem, config))


@pytest.mark.parametrize("implementation", ["naive", "mma_sync"])
def test_a_gradient_of_lse_is_taken_in_at_every_edge(implementation: str) -> None:
    """Its inputs have NaN for a query that attends no key."""
    kernel, problem = (
        operators.implementation(OPERATOR.name, implementation),
        Problem(head_dim=32, use_lse_gradient=True),
    )
    config = CONFIG if implementation == "mma_sync" else kernel.default(problem, HOPPER)
    assert_right_on_tails(Instance(OPERATOR, kernel, problem, config))


def test_fp32_is_right_at_every_edge() -> None:
    problem = Problem(head_dim=16, dtype=DType.FP32)
    naive = operators.implementation(OPERATOR.name, "naive")
    assert_right_on_tails(Instance.default(OPERATOR, naive, problem, HOPPER))
    assert "fp32" in (mma_sync.refusal(problem, HOPPER) or "")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.slow
def test_the_default_with_most_sums_a_thread_does_not_spill(arch: str) -> None:
    assert_no_spills(OPERATOR, mma_sync.IMPLEMENTATION, Problem(head_dim=192), arch)


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "window", "sinks"),
    [(200, 150, 40, 20), (300, 300, 70, 4), (90, 260, 33, 0), (150, 150, 500, 4), (100, 180, 1, 180)],
)
def test_declared_work_is_what_the_emulator_counts(seq_q: int, seq_k: int, window: int, sinks: int) -> None:
    sizes = {"batch": 2, "heads": 2, "kv_heads": 1, "seq_q": seq_q, "seq_k": seq_k, "window": window, "sinks": sinks}
    problem = Problem(head_dim=32, use_lse_gradient=sinks > 10, **sizes)
    result = declared_and_counted(Instance(OPERATOR, mma_sync.IMPLEMENTATION, problem, CONFIG), H200, "normal")
    for launch, (work, counters) in enumerate(result):
        assert work.mma == counters.mma_m16n8k16, launch
        assert work.barriers == counters.barriers, launch
        last_block = 0.15 if launch == 0 else 0  # whose lanes past the last row read it again
        assert work.l2_bytes == pytest.approx(global_bytes(counters), rel=last_block), launch
        assert counters.bank_conflicts == 0, launch


def test_twice_the_length_is_twice_the_work() -> None:
    def products(seq_q: int) -> float:
        problem = Problem(head_dim=64, seq_q=seq_q, window=512, sinks=4)
        works = mma_sync.IMPLEMENTATION.work(problem, mma_sync.default(Problem(head_dim=64), HOPPER), H200)
        return sum(work.mma for work in works)

    once, twice, thrice = (products(n * 16384) for n in (1, 2, 3))
    assert thrice - twice == pytest.approx(twice - once, rel=1e-3)


def test_sinks_cost_sixteen_keys_and_not_a_block_of_keys() -> None:
    config = mma_sync.default(Problem(head_dim=64), HOPPER)
    problem = Problem(head_dim=64, window=512)
    with_sinks, without = (
        mma_sync.IMPLEMENTATION.work(replace(problem, sinks=sinks), config, H200) for sinks in (4, 0)
    )
    pairs = problem.heads * problem.seq_q * 16
    assert without[2].mma == 0
    assert with_sinks[2].mma * 16 * 8 * 16 == pytest.approx(4 * 64 * pairs, rel=1e-2)


def test_the_figures_of_the_readme_are_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (OPERATOR.folder / "README.md").read_text()
    example, command = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(example, {})
    exec(command, {})
    printed = {tuple(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    rows = [tuple(re.findall(r"[\d.]+", row)) for row in re.findall(r"^\| (?:\d+)? ?(\| \d+, .*)$", text, re.MULTILINE)]
    assert len(rows) == 8
    assert set(rows) <= printed


def test_the_same_inputs_give_the_same_bits_whoever_runs_first() -> None:
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 80, "seq_k": 100, "window": 30, "sinks": 20}
    problem = Problem(head_dim=32, **sizes)
    instance, arrays = Instance(OPERATOR, mma_sync.IMPLEMENTATION, problem, CONFIG), draw(problem)
    modes = (Mode(True), Mode(True, "reverse"), CHECKED[0])
    outputs = [emulator.run(instance, arrays, mode)[0] for mode in modes]
    for name in ("dq", "dk", "dv"):
        assert len({result[name].tobytes() for result in outputs}) == 1


def test_an_application_gets_gradients_in_its_own_layout() -> None:
    arrays = draw(SMALL)
    swapped: dict[str, Any] = {
        name: np.ascontiguousarray(arrays[name].swapaxes(1, 2)) for name in ("dout", "q", "k", "v", "o")
    }
    result = dispatcher.streaming_attention_backward(**swapped, lse=arrays["lse"], window=4, sinks=2, layout="bhtd")
    right = OPERATOR.reference(SMALL, arrays)
    for name, gradient in zip(("dq", "dk", "dv"), result, strict=True):
        np.testing.assert_allclose(gradient.swapaxes(1, 2), right[name], atol=4e-3)


def test_windows_and_scales_that_are_not_positive_are_refused() -> None:
    with pytest.raises(UsageError, match=r"softmax_scale -1.*must be positive"):
        streaming_attention_backward(*(None,) * 6, window=4, softmax_scale=-1)
    with pytest.raises(UsageError, match=r"window 0: .* supports 1 to"):
        replace(SMALL, window=0)


@pytest.mark.parametrize("peer", peers.of(OPERATOR.name), ids=lambda peer: peer.name)
def test_peers_that_return_no_lse_do_not_take_its_gradient(peer: peers.Peer) -> None:
    with pytest.raises(peers.AbsentError, match="accepts no gradient"):
        peer.prepare(replace(SMALL, use_lse_gradient=True), {}, {})
