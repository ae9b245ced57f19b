"""torch's attention: scaled_dot_product_attention on each of its backends, and compiled flex_attention."""

from collections.abc import Callable
from typing import Any

from tuner.bench.peers.base import AbsentError, Run, Scalars, Tensors, module

_LARGEST_MASK = 1 << 32  # pairs of a query and a key, a byte each; SDPA makes a second mask of q's dtype of it
# What a backend of scaled_dot_product_attention is, for readers of its time.
NOTES = {
    "FLASH_ATTENTION": "FlashAttention-2, which uses none of Hopper's instructions",
    "CUDNN_ATTENTION": "of torch's backends the only one with kernels made for Hopper",
}
COMPILES_S = 150.0  # patience for a kernel that torch compiles, twice: for an edge case as well
Visible = Callable[[Any, Any], Any]  # whether a query may see a key, by their indices


def heads_first(tensors: Tensors) -> tuple[Any, Any, Any]:
    """Views of q, k and v as torch wants them: [B, H, T, D]."""
    q, k, v = (tensors[name].transpose(1, 2) for name in "qkv")
    return q, k, v


def grouped(problem: Any) -> bool:
    """Whether query heads share heads of K and V."""
    return bool(problem.heads != problem.kv_heads)


def sdpa(backend: str, problem: Any, tensors: Tensors, scale: float, **options: Any) -> Run:
    """scaled_dot_product_attention on one backend only; `options` are its is_causal or attn_mask."""
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
    """flex_attention, compiled; its BlockMask, made once, skips blocks in which no key is visible."""
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
    """The backward pass alone, of what `forward` makes of q, k and v: that runs once, here."""
    torch = module("torch")
    leaves = {name: tensors[name].detach().requires_grad_() for name in "qkv"}
    with torch.enable_grad():
        o = forward(leaves)()["o"]

    def run() -> Any:
        gradients_of_leaves = torch.autograd.grad(o, tuple(leaves.values()), tensors["dout"], retain_graph=True)
        return dict(zip(("dq", "dk", "dv"), gradients_of_leaves, strict=True))

    return run


def without_lse(problem: Any) -> None:
    """Raises AbsentError for a problem with a gradient of lse, which torch's attention does not return."""
    if problem.use_lse_gradient:
        raise AbsentError("it returns no lse, and so takes no gradient of it")


def dense_mask(pairs: int) -> None:
    """Raises AbsentError where a mask of so many pairs of a query and a key is too large."""
    if pairs > _LARGEST_MASK:
        raise AbsentError(f"a dense mask of {pairs / 2**30:.0f} Gi pairs takes too much memory")


def scale_of(scalars: Scalars) -> float:
    return float(scalars["softmax_scale"])
