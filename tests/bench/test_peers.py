"""Tests that peers compute what our operators define: on the CPU with torch, otherwise by their signatures."""

import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tuner import operators
from tuner.bench import peers
from tuner.bench.peers import AbsentError, Peer
from tuner.evaluate.measure.device_check import Case, cases
from tuner.spec.dtype import DType
from tuner.spec.parameters import scalars
from tuner.spec.problem import to_fields

ON_CPU = ("torch SDPA math", "torch flex", "torch SDPA, ", "torch scan", "torch cumsum")
ON_GPU = ("torch flex_attention, BlockMask, backward",)  # flex_attention has no gradient on the CPU
PROBLEMS = {
    "flash_attention": ({"head_dim": 64}, {"head_dim": 64, "head_dim_v": 32, "causal": True}),
    "flash_attention_backward": ({"head_dim": 64}, {"head_dim": 64, "head_dim_v": 32, "causal": True}),
    "mla_decode": ({"head_dim": 64, "head_dim_v": 48},),
    "paged_attention": ({"head_dim": 64},),
    "streaming_attention": ({"head_dim": 64},),
    "streaming_attention_backward": ({"head_dim": 64},),
    "linear_attention": ({"head_dim": 24}, {"head_dim": 24, "decay": "channel"}, {"head_dim": 24, "decay": "head"}),
    "linear_attention_backward": ({"head_dim": 24}, {"head_dim": 24, "decay": "channel"}),
}


def contests() -> Iterator[Any]:
    for name, problems in PROBLEMS.items():
        for peer in peers.of(name):
            if peer.name.startswith(ON_CPU) and peer.name not in ON_GPU:
                yield from (pytest.param(name, fields, peer, id=f"{peer.name} {fields}") for fields in problems)


@pytest.mark.parametrize(("name", "fields", "peer"), list(contests()))
def test_a_peer_computes_what_the_operator_defines(name: str, fields: dict[str, Any], peer: Peer) -> None:
    pytest.importorskip("torch")
    operator = operators.load(name)
    taken = sum(is_right(case, peer) for case in cases(operator, to_fields(operator.problem(**fields)), every=False))
    assert taken > 0


def is_right(case: Case, peer: Peer) -> bool:
    """Return False if the peer refuses the case; fail if it accepts the case and is wrong."""
    try:
        run = peer.prepare(case.problem, peers.to_torch(case.arrays, "cpu"), case.scalars)
    except AbsentError:
        return False
    for name, tensor in run().items():
        error = case.expected.error(name, peers.to_numpy(tensor))
        assert error.ok, f"{case.name}: {error.reason}"
    return True


def test_peers_of_a_cache_of_eight_bits_are_absent_and_say_why() -> None:
    pytest.importorskip("torch")
    operator = operators.load("paged_attention")
    case = next(iter(cases(operator, to_fields(operator.problem(kv_cache_dtype=DType.FP8_E4M3)), every=False)))
    tensors = peers.to_torch(case.arrays, "cpu")
    assert str(tensors["k_cache"].dtype) == "torch.float8_e4m3fn"
    for peer in peers.of("paged_attention"):
        with pytest.raises(AbsentError, match="torch needs keys and values of the dtype of q"):
            peer.prepare(case.problem, tensors, case.scalars)


def test_every_operator_has_peers_but_the_gradients_of_kda() -> None:
    assert [name for name in operators.names() if not peers.of(name)] == ["kda_backward"]


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_a_peer_is_absent_and_says_why() -> None:
    with pytest.raises(AbsentError, match="torch cannot be imported"):
        peers.to_torch({})


@pytest.mark.parametrize("flags", [{}, {"use_gate_in_kernel": True, "use_dt_bias": True, "use_lower_bound": True}])
@pytest.mark.parametrize("peer", peers.of("kda"), ids=lambda peer: peer.name)
def test_fla_takes_the_arguments_that_it_is_given(peer: Peer, flags: dict[str, Any]) -> None:
    kda = pytest.importorskip("fla.ops.kda")
    operator = operators.load("kda")
    problem = operator.problem(seq_len=40, heads=1, use_cu_seqlens=True, use_initial_state=True, boundaries=3, **flags)
    arrays = operator.inputs(problem, np.random.default_rng(0), "weak_gate")
    run = peer.prepare(problem, peers.to_torch(arrays, "cpu"), scalars(operator, problem, arrays))
    arguments = inspect.getclosurevars(run).nonlocals["arguments"]
    bound = inspect.signature(getattr(kda, peer.name.removeprefix("fla "))).bind(**arguments).arguments
    assert set(bound.get("kwargs", {})) <= {"A_log", "dt_bias"}  # chunk_kda reads these two from its **kwargs
    assert tuple(arguments["initial_state"].shape) == (2, 1, 128, 128)
