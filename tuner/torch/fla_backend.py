"""A backend for flash-linear-attention's registry: which of its calls of KDA and the gated delta rule are served, and
how. Imports FLA.
"""

from inspect import signature
from typing import Any, ClassVar

import torch
from fla.backends import BaseBackend

from tuner.torch import delta, fla

_Accepted = tuple[bool, str | None]  # whether a call is served, and the reason if not; FLA then asks its next backend


class Backend(BaseBackend):  # type: ignore[misc]  # FLA has no types
    """`chunk_kda` and `chunk_gated_delta_rule`, and the functions behind `fused_recurrent_kda` and
    `fused_recurrent_gated_delta_rule`, as FLA calls them."""

    backend_type: ClassVar[str] = "kerntune"
    package_name: ClassVar[str | None] = None
    env_var = "FLA_KERNTUNE"
    priority: ClassVar[int] = 0  # before FLA's own

    def chunk_kda_verifier(self, *_: Any, **options: Any) -> _Accepted:
        unserved = ("return_intermediate_states", "cp_context")
        return _accepted({name: options.get(name) for name in unserved})

    def chunk_kda(self, *tensors: Any, **options: Any) -> tuple[Any, Any]:
        return fla.chunk_kda(*tensors, **options)

    def chunk_gated_delta_rule_verifier(self, q: Any, k: Any, v: Any, *_: Any, **options: Any) -> _Accepted:
        served = signature(delta.chunk_gated_delta_rule).parameters
        unserved = {name: value for name, value in options.items() if name not in (*served, *delta.HINTS)}
        unserved |= _widths(q, v)
        unserved["q, k and v of several dtypes"] = len({x.dtype for x in (q, k, v)}) > 1
        return _accepted(unserved)

    def chunk_gated_delta_rule(self, *tensors: Any, **options: Any) -> tuple[Any, Any]:
        return delta.chunk_gated_delta_rule(*tensors, **options)

    def fused_recurrent_gated_delta_rule_fwd_verifier(self, **options: Any) -> _Accepted:
        beta, v = options["beta"], options["v"]
        unserved = {"gv": options["gv"], "beta a channel": beta is not None and beta.ndim == v.ndim}
        return _accepted(unserved | _widths(options["q"], v))

    def fused_recurrent_gated_delta_rule_fwd(self, **options: Any) -> tuple[Any, Any]:
        return delta.fused_recurrent_gated_delta_rule(use_gate_in_kernel=options["A_log"] is not None, **options)

    def fused_recurrent_kda_fwd_verifier(
        self, q: Any, k: Any, v: Any, g: Any, beta: Any, *_: Any, **options: Any
    ) -> _Accepted:
        state, indices = options.get("initial_state"), options.get("ssm_state_indices")
        pooled = options.get("inplace_final_state", True)
        unserved = {
            "num_accepted_tokens": options.get("num_accepted_tokens"),
            "ssm_state_indices of tokens": indices is not None and indices.ndim > 1,
            "ssm_state_indices of states that are not updated in place": indices is not None and not pooled,
            "beta a channel": beta.ndim == v.ndim,
            "a pool of states of less than fp32": pooled and state is not None and state.dtype != torch.float32,
            "gradients": torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v, g, beta)),
        }
        return _accepted(unserved)

    def fused_recurrent_kda_fwd(
        self,
        *tensors: Any,
        out: Any = None,
        inplace_final_state: bool = True,
        num_accepted_tokens: None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        del num_accepted_tokens  # None, as the verifier has checked
        o, final_state = fla.fused_recurrent_kda(*tensors, inplace_final_state=inplace_final_state, **options)
        return (o if out is None else out.copy_(o)), final_state


def _widths(q: Any, v: Any) -> dict[str, bool]:
    """Heads that kda's kernels do not take."""
    K, V = q.shape[-1], v.shape[-1]
    return {f"key_dim {K} with value_dim {V}": any(width % 16 or width > 256 for width in (K, V))}


def _accepted(unserved: dict[str, Any]) -> _Accepted:
    asked = [name for name, value in unserved.items() if isinstance(value, torch.Tensor) or value]
    return (False, f"{asked[0]} is not supported") if asked else (True, None)
