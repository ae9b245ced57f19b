"""Peers of mla_decode: SDPA after pages are gathered, with heads as queries of one head, and FlashMLA."""

from typing import Any

from tuner.bench.peers import AbsentError, Peer, Run, Scalars, Tensors, module
from tuner.bench.peers.attention import dense_mask, scale_of
from tuner.spec import DType


def _gathered(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """The usual approach without a paged kernel: a copy of each sequence's rows, and a dense mask."""
    torch, attention = module("torch"), module("torch.nn.attention")
    cache = tensors["kv_cache"].nan_to_num()  # a masked NaN in the values would remain NaN
    table = tensors["block_table"].clamp(0, problem.pages - 1).long()
    q, seen = tensors["q"].flatten(1, 2)[:, None], _attended_positions(problem, tensors)[:, None]
    nothing = ~seen.any(-1, keepdim=True)  # rows in which softmax would return NaN
    backend = attention.SDPBackend.EFFICIENT_ATTENTION if q.is_cuda else attention.SDPBackend.MATH
    options = {"scale": scale_of(scalars), "attn_mask": seen | nothing}
    shape = problem.batch, problem.seq_q, problem.heads, problem.head_dim_v

    def run() -> Any:
        rows = cache[table].flatten(1, 2)[:, None]
        with attention.sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(q, rows, rows[..., : problem.head_dim_v], **options)
        return {"o": o.masked_fill_(nothing, 0).view(shape)}

    return run


def _attended_positions(problem: Any, tensors: Tensors) -> Any:
    """Whether each query of each head attends each position: bool [B, T · H, S]."""
    torch = module("torch")
    dense_mask(problem.batch * problem.heads * problem.seq_q * problem.seq_k)
    lengths = tensors["cache_seqlens"].clamp(0, problem.seq_k).long()
    query_index = torch.arange(problem.seq_q, device=lengths.device).repeat_interleave(problem.heads)
    query = (lengths[:, None] - problem.seq_q + query_index)[:, :, None]
    return torch.arange(problem.seq_k, device=lengths.device) <= query


def _flash_mla(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """FlashMLA, whose metadata is computed once, here, as its users do for all layers of a model."""
    package = module("flash_mla")
    if (problem.head_dim, problem.head_dim_v, problem.page_size) != (576, 512, 64) or problem.dtype is DType.FP32:
        raise AbsentError("FlashMLA needs 16-bit rows of 576 elements, values of 512, and pages of 64 rows")
    lengths = tensors["cache_seqlens"].clamp(0, problem.seq_k)
    metadata = package.get_mla_metadata(lengths, problem.seq_q * problem.heads, 1)
    positional = tensors["q"], tensors["kv_cache"].unsqueeze(2), tensors["block_table"], lengths, problem.head_dim_v
    options = {"softmax_scale": scale_of(scalars), "causal": True}

    def run() -> Any:
        o, _ = package.flash_mla_with_kvcache(*positional, *metadata, **options)
        return {"o": o}

    return run


PEERS = (Peer("torch SDPA, gathered pages", _gathered), Peer("FlashMLA", _flash_mla))
