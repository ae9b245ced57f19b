"""Peers of linear_attention: scans in torch, and flash-linear-attention's HGRN, applied twice."""

from typing import Any

from tuner.bench.peers import AbsentError, Peer, Run, Scalars, Tensors, module


def _cumsum(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """Two cumulative sums in fp32, which are equivalent to a state with β = 1."""
    torch = module("torch")
    if not bool((_beta(problem, tensors, scalars) == 1).all()):
        raise AbsentError("a cumulative sum does not decay: every beta must be 1")
    return lambda: _quotient(problem, tensors, lambda x: torch.cumsum(x, 1))


def _doubling(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """A scan in log2(T) passes: after the pass with stride d, a token holds the sum of the last 2 d tokens."""
    beta = _beta(problem, tensors, scalars)

    def scan(x: Any) -> Any:
        stride = 1
        while stride < x.shape[1]:
            reached = x.clone()
            reached[:, stride:] += beta**stride * x[:, :-stride]
            x, stride = reached, 2 * stride
        return x

    return lambda: _quotient(problem, tensors, scan)


def _hgrn(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """h = e^g h + x, once for s and once for n; e^g is beta, which HGRN needs for every element."""
    fla = module("fla.ops.hgrn")
    shape = (problem.batch, problem.seq_len, problem.channels)
    logs = _beta(problem, tensors, scalars).log().expand(1, 1, problem.heads, problem.head_dim)
    g = logs.reshape(1, 1, -1).expand(shape).contiguous()

    def scan(x: Any) -> Any:
        return fla.fused_recurrent_hgrn(x.reshape(shape), g)[0].reshape(x.shape)

    return lambda: _quotient(problem, tensors, scan)


def _quotient(problem: Any, tensors: Tensors, scan: Any) -> dict[str, Any]:
    """o = q s / n in fp32, from scans over the tokens [B, T, H, D]."""
    q, k, v = (tensors[name].float() for name in "qkv")
    weight = k.clamp(min=-problem.key_floor).sigmoid()
    return {"o": (q * scan(weight * v) / scan(weight)).to(tensors["q"].dtype)}


def _beta(problem: Any, tensors: Tensors, scalars: Scalars) -> Any:
    """fp32 [1, 1, 1 or H, 1 or D]. Raises AbsentError for problems that these scans do not support."""
    if problem.varlen or problem.use_initial_state or problem.output_final_state:
        raise AbsentError("these scans start from a zero state, do not return one, and do not pack sequences")
    if problem.decay == "scalar":
        return tensors["q"].new_full((1, 1, 1, 1), scalars["beta_scalar"], dtype=module("torch").float32)
    return tensors["beta"][None, None]


PEERS = (
    Peer("torch cumsum", _cumsum, many_launches=True),
    Peer("torch scan by doubling", _doubling, many_launches=True),
    Peer("fla fused_recurrent_hgrn, twice", _hgrn, many_launches=True),
)
