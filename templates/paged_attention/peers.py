"""Peers of paged_attention: SDPA after pages are gathered, and flex_attention over all pages with a BlockMask."""

from typing import Any

from tuner.bench.peers import AbsentError, Peer, Run, Scalars, Tensors, module
from tuner.bench.peers.attention import COMPILES_S, dense_mask, grouped, scale_of


def _gathered(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """The usual approach without a paged kernel: a copy of each sequence's keys, and a dense mask."""
    torch, attention = module("torch"), module("torch.nn.attention")
    _refuse(problem)
    pages, table = _finite(tensors), tensors["block_table"].clamp(0, problem.pages - 1).long()
    q, seen = tensors["q"].transpose(1, 2), _attended_positions(problem, tensors)[:, None]
    nothing = ~seen.any(-1, keepdim=True)  # rows in which softmax would return NaN
    backend = attention.SDPBackend.EFFICIENT_ATTENTION if q.is_cuda else attention.SDPBackend.MATH
    options = {"scale": scale_of(scalars), "attn_mask": seen | nothing, "enable_gqa": grouped(problem)}

    def run() -> Any:
        k, v = (page[table].flatten(1, 2).transpose(1, 2) for page in pages)
        with attention.sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        return {"o": o.masked_fill_(nothing, 0).transpose(1, 2)}

    return run


def _flex(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """No copy: a mask, built once, maps rows of pages to positions, and skips blocks outside the sequence."""
    package = module("torch.nn.attention.flex_attention")
    _refuse(problem)
    q, owner = tensors["q"].transpose(1, 2), _page_indices(problem, tensors)
    rows = problem.pages * problem.page_size
    k, v = (cache.flatten(0, 1).transpose(0, 1).expand(problem.batch, -1, -1, -1) for cache in _finite(tensors))
    seen, size = _attended_positions(problem, tensors), problem.page_size

    def visible(b: Any, _h: Any, query: Any, row: Any) -> Any:
        page = owner[b, row // size]
        position = page.clamp(min=0) * size + row % size
        return (page >= 0) & seen[b, query, position]

    shape = {"B": problem.batch, "H": None, "Q_LEN": problem.seq_q, "KV_LEN": rows}
    mask = package.create_block_mask(visible, **shape, device=q.device, _compile=q.is_cuda)
    attend = module("torch").compile(package.flex_attention, dynamic=False) if q.is_cuda else package.flex_attention
    options = {"block_mask": mask, "scale": scale_of(scalars), "enable_gqa": grouped(problem)}
    return lambda: {"o": attend(q, k, v, **options).transpose(1, 2)}


def _refuse(problem: Any) -> None:
    if problem.use_softcap:
        raise AbsentError("the peer applies no softcap")
    if problem.use_cu_seqlens_q:
        raise AbsentError("the peer needs the same number of queries in every sequence")
    if problem.eight_bits:
        raise AbsentError("torch needs keys and values of the dtype of q")


def _attended_positions(problem: Any, tensors: Tensors) -> Any:
    """Whether each query attends each position: bool [B, T, S]."""
    torch = module("torch")
    dense_mask(problem.batch * problem.seq_q * problem.seq_k)
    lengths = tensors["cache_seqlens"].clamp(0, problem.seq_k).long()
    query_index = torch.arange(problem.seq_q, device=lengths.device)
    query = (lengths[:, None] - problem.seq_q + query_index)[:, :, None]
    key = torch.arange(problem.seq_k, device=lengths.device)
    return (key <= query) & ((key < problem.sinks) | (query - key < problem.window))


def _page_indices(problem: Any, tensors: Tensors) -> Any:
    """Index of each page of the cache within the sequence, -1 for pages of other sequences: int64 [B, pages]."""
    torch, table = module("torch"), tensors["block_table"]
    page = torch.arange(problem.max_pages, device=table.device)
    lengths = tensors["cache_seqlens"].clamp(0, problem.seq_k)
    owners = torch.full((problem.batch, problem.pages + 1), -1, device=table.device)
    needed = page * problem.page_size < lengths[:, None]
    owners.scatter_(1, torch.where(needed, table, problem.pages).long(), page.expand(problem.batch, -1))
    return owners[:, :-1]


def _finite(tensors: Tensors) -> tuple[Any, Any]:
    """The caches with zeros in unwritten rows: a masked NaN in V would remain NaN."""
    return tensors["k_cache"].nan_to_num(), tensors["v_cache"].nan_to_num()


PEERS = (
    Peer("torch SDPA, gathered pages", _gathered),
    Peer("torch flex_attention, BlockMask over pages", _flex, patience_s=COMPILES_S),
)
