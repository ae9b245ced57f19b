"""Flash-linear-attention's own KDA on the CPU: its Triton kernels in Triton's interpreter.

python fla_on_cpu.py CALLS RESULTS, with TRITON_INTERPRET=1 from the start: CALLS is what `torch.save` made of a list of
(function, tensors, options), RESULTS gets the outputs of each call and, of `chunk_kda`, the gradients of `loss`.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch


def main(calls: str, results: str) -> None:
    import unfit_torchvision  # noqa: F401  # it lies beside this file

    served = interpreted()
    torch.save([run(served[name], tensors, options) for name, tensors, options in torch.load(calls)], results)


def run(function: Any, tensors: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a call, the initial states as it leaves them, and gradients by `d<name>`."""
    differentiable = function.__name__ == "chunk_kda"
    given = {name: x.clone().requires_grad_(differentiable and x.is_floating_point()) for name, x in tensors.items()}
    o, state = function(**given, **options)
    results = {"o": o.detach(), "initial_state": given["initial_state"].detach()}
    if options.get("output_final_state"):
        results["final_state"] = state.detach()
    if not differentiable:
        return results
    loss(o, state).backward()
    return results | {f"d{name}": x.grad for name, x in given.items() if x.requires_grad}


def loss(o: Any, state: Any) -> Any:
    """One that weights no two elements alike."""
    each = (x.flatten() for x in (o, state) if x is not None)
    return sum((x * torch.arange(x.numel()).cos()).sum() for x in each)


def interpreted() -> dict[str, Any]:
    """FLA's functions by name, mended for what the interpreter lacks: times to choose configs by, names bound early."""
    autotuner = import_module("triton.runtime.autotuner").Autotuner
    autotuner.run = import_module("fla.ops.utils.cache").CachedAutotuner.run = _first_config
    kda = import_module("fla.ops.kda")
    recurrent = import_module("fla.ops.kda.fused_recurrent")
    for module in [module for name, module in sys.modules.items() if name.startswith("fla.ops")]:
        _bind_late(module)
    intra = import_module("fla.ops.kda.chunk_intra")
    intra.SAFE_GATE_DOT_PRECISION = import_module("triton.language").constexpr("ieee")
    return {
        function.__name__: function
        for function in (kda.chunk_kda, kda.fused_recurrent_kda, recurrent.fused_recurrent_kda_fwd)
    }


def _first_config(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())


def _bind_late(module: Any) -> None:
    """The interpreter replaces functions of triton.language while a kernel runs, which copies of their names miss."""
    language = import_module("triton.language")
    if getattr(module, "gather", None) is language.gather:
        module.gather = lambda *args, **kwargs: language.gather(*args, **kwargs)
    module.range = _range


class _Index(int):
    """Of a loop, with the one method of a tensor that kernels call on it."""

    def to(self, _dtype: Any) -> "_Index":
        return self


def _range(*bounds: Any) -> Iterator[_Index]:
    return map(_Index, range(*map(int, bounds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
