"""Peers of linear_attention: scans that torch offers, and flash-linear-attention's HGRN, twice."""

from typing import Any

from tuner.bench.peers import AbsentError, Peer, Run, Scalars, Tensors, module


def _cumsum(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """Two cumulative sums in fp32: what a state that never forgets comes to."""
    torch = module("torch")
    if not bool((_beta(problem, tensors, scalars) == 1).all()):
        raise AbsentError("a cumulative sum never forgets: every beta must be 1")
    return lambda: _quotient(problem, tensors, lambda x: torch.cumsum(x, 1))


def _doubling(problem: Any, tensors: Tensors, scalars: Scalars) -> Run:
    """A scan in log2(T) passes: after the one of stride d, a token holds the 2 d tokens up to its own."""
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
    """h = e^g h + x, once for s and once for n; e^g is beta, which HGRN takes for every element."""
    fla = module("fla.ops.hgrn")
    shape = (problem.batch, problem.seq_len, problem.channels)
    logs = _beta(problem, tensors, scalars).log().expand(1, 1, problem.heads, problem.head_dim)
    g = logs.reshape(1, 1, -1).expand(shape).contiguous()

    def scan(x: Any) -> Any:
        return fla.fused_recurrent_hgrn(x.reshape(shape), g)[0].reshape(x.shape)

    return lambda: _quotient(problem, tensors, scan)


def _quotient(problem: Any, tensors: Tensors, scan: Any) -> dict[str, Any]:
    """o = q s / n in fp32, of scans over the tokens [B, T, H, D]."""
    q, k, v = (tensors[name].float() for name in "qkv")
    weight = k.clamp(min=-problem.key_floor).sigmoid()
    return {"o": (q * scan(weight * v) / scan(weight)).to(tensors["q"].dtype)}


def _beta(problem: Any, tensors: Tensors, scalars: Scalars) -> Any:
    """fp32 [1, 1, 1 or H, 1 or D]. Raises AbsentError for what these scans do not know."""
    if problem.varlen or problem.use_initial_state or problem.output_final_state:
        raise AbsentError("it takes whole sequences from a state of zeros, and returns none")
    if problem.decay == "scalar":
        return tensors["q"].new_full((1, 1, 1, 1), scalars["beta_scalar"], dtype=module("torch").float32)
    return tensors["beta"][None, None]


PEERS = (
    Peer("torch cumsum", _cumsum, many_launches=True),
    Peer("torch scan by doubling", _doubling, many_launches=True),
    Peer("fla fused_recurrent_hgrn, twice", _hgrn, many_launches=True),
)
