"""FLA's KimiDeltaAttention, unmodified, with its own kernels and with ours; Triton is interpreted on the CPU.

python fla_layers.py RESULTS, with TRITON_INTERPRET=1 from the start: RESULTS gets, a layer, both sets of tensors, and
what FLA's log says of who served.
"""

import logging
import sys
from typing import Any

import torch

from tests.torch import unfit_torchvision  # noqa: F401  # transformers, which FLA imports, looks at it
from tests.torch.fla_on_cpu import interpreted

LAYERS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "groups of value heads": {"num_v_heads": 4, "expand_v": 2.0},
    "lower bound": {"safe_gate": True, "lower_bound": -5.0, "allow_neg_eigval": True},
}
TOKENS, DECODED = 65, 20  # more than a chunk; so many that FLA decodes them one by one


def main(results: str) -> None:
    served = _heard()
    interpreted()
    layer = __import__("fla.layers.kda", fromlist=["layers"]).KimiDeltaAttention
    theirs = {name: outputs(layer, options) for name, options in LAYERS.items()}
    from tuner.torch import fla

    fla.register()
    fla.register()  # again: no change
    ours = {name: outputs(layer, options) for name, options in LAYERS.items()}
    torch.save({"theirs": theirs, "ours": ours, "served": served}, results)


def outputs(layer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What a layer gives in training and in evaluation, and the gradients of all that it learns."""
    torch.manual_seed(0)
    made = layer(hidden_size=64, head_dim=16, num_heads=2, **options)
    x = torch.randn(1, TOKENS, 64, requires_grad=True)
    o = made.train()(x)[0]
    o.square().sum().backward()
    with torch.no_grad():
        evaluated = made.eval()(x[:, :DECODED])[0]
    learned = {f"d{name}": parameter.grad for name, parameter in made.named_parameters() if parameter.grad is not None}
    return {"o": o.detach(), "evaluated": evaluated, "dx": x.grad, **learned}


def _heard() -> list[str]:
    served: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: served.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("fla.backends")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    return served


if __name__ == "__main__":
    main(sys.argv[1])
