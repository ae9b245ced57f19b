"""Tests of transforms of torch.func, FLOP counts, fake tensors and DTensor shards."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.func import grad, vjp, vmap  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import tuner.torch  # noqa: E402
from tuner import operators  # noqa: E402
from tuner.errors import InputError  # noqa: E402


def qkv(*lead: int) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(*lead, 2, 6, heads, 16) for heads in (4, 2, 2)]


def loss(q: Any, k: Any, v: Any) -> Any:
    o, lse = torch.ops.tuner.flash_attention(q, k, v, causal=True)
    return o.square().sum() + lse.sum()


def gradients(given: list[Any]) -> tuple[Any, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    return torch.autograd.grad(loss(*leaves), leaves)  # type: ignore[no-any-return]


def test_torch_func_s_gradients_are_autograds() -> None:
    given = qkv()
    expected = gradients(given)
    assert all(map(torch.equal, grad(loss, argnums=(0, 1, 2))(*given), expected))
    value, back = vjp(loss, *given)
    assert torch.equal(value, loss(*given))
    assert all(map(torch.equal, back(torch.ones(())), expected))


def test_a_batch_of_calls_is_a_call_of_a_larger_batch() -> None:
    q, k, v = qkv(3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule")
        result = vmap(torch.ops.tuner.flash_attention, in_dims=(0, None, 1))(q, k[0], v.transpose(0, 1))
    of_each = vmap(grad(loss, argnums=(0, 1, 2)))(q, k, v)
    for i in range(3):
        assert all(map(torch.equal, (result[0][i], result[1][i]), torch.ops.tuner.flash_attention(q[i], k[0], v[i])))
        assert all(map(torch.equal, (tensor[i] for tensor in of_each), gradients([q[i], k[i], v[i]])))


def test_packed_calls_are_batched_one_after_the_other() -> None:
    q, k, v = (tensor.flatten(1, 2)[:, None] for tensor in qkv(3))
    bounds = torch.tensor([0, 5, 12], dtype=torch.int32)
    call = torch.ops.tuner.flash_attention
    result = vmap(lambda q, k, v: call(q, k, v, bounds, bounds)[0])(q, k, v)
    assert all(torch.equal(result[i], call(q[i], k[i], v[i], bounds, bounds)[0]) for i in range(3))


def test_a_gradient_of_a_gradient_is_refused_and_not_zero() -> None:
    q, k, v = qkv()
    with pytest.raises(InputError, match="flash_attention_backward has no gradient"):
        grad(lambda q: grad(loss)(q, k, v).sum())(q)
    leaf = q.clone().requires_grad_()
    with pytest.raises(InputError, match="leave out create_graph=True"):
        torch.autograd.grad(loss(leaf, k, v), leaf, create_graph=True)


def test_torch_s_counter_counts_what_the_operator_declares() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv())
    with FlopCounterMode(display=False) as counter:
        torch.ops.tuner.flash_attention(q, k, v)[0].sum().backward()
    counts = counter.get_flop_counts()["Global"]
    assert counts[torch.ops.tuner.flash_attention] == 2 * 2 * 4 * 6 * 6 * (16 + 16)
    backward, problem = (operators.load(f"flash_attention{end}") for end in ("_backward", ""))
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 6, "seq_k": 6, "head_dim": 16}
    assert counts[torch.ops.tuner.flash_attention_backward] == backward.cost(backward.problem(**sizes)).flops
    assert problem.cost(problem.problem(**sizes)).flops == counts[torch.ops.tuner.flash_attention]


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_size_that_does_not_fit_is_refused_where_shapes_are_inferred(at: int) -> None:
    q, k, v = (tensor.to("meta") for tensor in qkv())
    wrong = k.new_empty([size + 8 * (axis == at) for axis, size in enumerate(k.shape)])
    with pytest.raises(InputError, match=r"[kv] has"):
        torch.ops.tuner.flash_attention(q, wrong, v)


def _sharded(rank: int, folder: str) -> None:
    """In one of two processes: shards that stay, and what is brought together."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    tuner.torch.register_sharding()
    given = qkv()
    expected = torch.ops.tuner.flash_attention(*given)[0]
    for layout, order in (("bthd", (0, 1, 2, 3)), ("bhtd", (0, 2, 1, 3))):
        laid = [tensor.permute(order).contiguous() for tensor in given]
        for axis in range(3):
            shards = [distribute_tensor(tensor, mesh, [Shard(axis)]).requires_grad_() for tensor in laid]
            o = torch.ops.tuner.flash_attention(*shards, layout=layout)[0]
            stays = axis == 0 or axis == ("bthd".index("h") if layout == "bthd" else 1)
            assert o.placements == ((Shard(axis) if stays else Replicate()),), (layout, axis, o.placements)
            assert (o.full_tensor().permute(order) - expected).abs().max() <= 1e-6
            o.square().sum().backward()
            leaves = [tensor.clone().requires_grad_() for tensor in given]
            torch.ops.tuner.flash_attention(*leaves)[0].square().sum().backward()
            for one, other in zip(shards, leaves, strict=True):
                assert not stays or one.grad.placements == o.placements, (layout, axis, one.grad.placements)
                assert (one.grad.full_tensor().permute(order) - other.grad).abs().max() <= 2e-6
    dist.destroy_process_group()


def test_batches_and_heads_may_be_sharded(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(_sharded, (str(tmp_path),), nprocs=2, start_method="spawn")
