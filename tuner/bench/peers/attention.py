"""torch's attention: scaled_dot_product_attention on each of its backends, and compiled flex_attention."""

from collections.abc import Callable
from typing import Any

from tuner.bench.peers.base import AbsentError, Run, Scalars, Tensors, module

_LARGEST_MASK = 1 << 32  # query-key pairs of a one-byte mask; SDPA also converts it to q's dtype
# Notes on the backends of scaled_dot_product_attention for readers of their times.
NOTES = {
    "FLASH_ATTENTION": "FlashAttention-2, which uses no Hopper-specific instructions",
    "CUDNN_ATTENTION": "the only torch backend with Hopper-specific kernels",
}
COMPILES_S = 150.0  # time limit of kernels that torch compiles twice: for an edge case and for the problem
Visible = Callable[[Any, Any], Any]  # whether a query may see a key, by index


def heads_first(tensors: Tensors) -> tuple[Any, Any, Any]:
    """Return views of q, k and v in torch's layout [B, H, T, D]."""
    q, k, v = (tensors[name].transpose(1, 2) for name in "qkv")
    return q, k, v


def grouped(problem: Any) -> bool:
    """Return whether query heads share heads of K and V."""
    return bool(problem.heads != problem.kv_heads)


def sdpa(backend: str, problem: Any, tensors: Tensors, scale: float, **options: Any) -> Run:
    """Return scaled_dot_product_attention on a single backend; `options` holds its is_causal or attn_mask."""
    torch, attention = module("torch"), module("torch.nn.attention")
    chosen = getattr(attention.SDPBackend, backend, None)
    if chosen is None:
        raise AbsentError(f"this torch has no backend {backend}")
    q, k, v = heads_first(tensors)
    options |= {"enable_gqa": True} if grouped(problem) else {}

    def run() -> Any:
        with attention.sdpa_kernel(chosen):
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, **options)
        return {"o": o.transpose(1, 2)}

    return run


def flex(problem: Any, tensors: Tensors, scale: float, visible: Visible | None) -> Run:
    """Return compiled flex_attention; its BlockMask, created once, skips blocks without visible keys."""
    torch, package = module("torch"), module("torch.nn.attention.flex_attention")
    q, k, v = heads_first(tensors)
    mask = None
    if visible is not None:
        shape = {"B": None, "H": None, "Q_LEN": problem.seq_q, "KV_LEN": problem.seq_k}
        mask = package.create_block_mask(
            lambda _b, _h, query, key: visible(query, key), **shape, device=q.device, _compile=q.is_cuda
        )
    compiled = torch.compile(package.flex_attention, dynamic=False) if q.is_cuda else package.flex_attention
    options = {"block_mask": mask, "scale": scale, "enable_gqa": grouped(problem)}
    return lambda: {"o": compiled(q, k, v, **options).transpose(1, 2)}


def gradients(tensors: Tensors, forward: Callable[[Tensors], Run]) -> Run:
    """Return the backward pass alone, for the result of `forward` on q, k and v, which runs once here."""
    torch = module("torch")
    leaves = {name: tensors[name].detach().requires_grad_() for name in "qkv"}
    with torch.enable_grad():
        o = forward(leaves)()["o"]

    def run() -> Any:
        gradients_of_leaves = torch.autograd.grad(o, tuple(leaves.values()), tensors["dout"], retain_graph=True)
        return dict(zip(("dq", "dk", "dv"), gradients_of_leaves, strict=True))

    return run


def without_lse(problem: Any) -> None:
    """Raise AbsentError for a problem with a gradient of lse, which torch's attention does not return."""
    if problem.use_lse_gradient:
        raise AbsentError("it returns no lse, so it accepts no gradient of it")


def dense_mask(pairs: int) -> None:
    """Raise AbsentError if a mask with this many query-key pairs is too large."""
    if pairs > _LARGEST_MASK:
        raise AbsentError(f"a dense mask of {pairs / 2**30:.0f} Gi pairs takes too much memory")


def scale_of(scalars: Scalars) -> float:
    return float(scalars["softmax_scale"])
