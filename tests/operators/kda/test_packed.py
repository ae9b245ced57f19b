"""kda and its gradients over packed sequences: what one holds is nothing to the others."""

from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_apart, drawn, first_arch
from tuner import operators
from tuner.spec.instance import Instance

BOUNDS = (0, 21, 21, 48, 77)
SIZES: dict[str, Any] = {"key_dim": 64, "value_dim": 64, "batch": 1, "heads": 1, "value_heads": 2, "seq_len": 77}
PACKED: dict[str, Any] = {**SIZES, "use_cu_seqlens": True, "boundaries": len(BOUNDS), "use_initial_state": True}
LAST = {"kda": {"output_final_state": True}, "kda_backward": {"use_final_gradient": True}}
OUTPUTS = {"kda": ("o", "final_state"), "kda_backward": ("dq", "dk", "dv", "dg", "dbeta", "dh0")}
KERNELS = [(name, implementation.name) for name in LAST for implementation in operators.implementations(name)]


@pytest.mark.parametrize(("name", "implementation"), KERNELS, ids=["/".join(kernel) for kernel in KERNELS])
def test_a_packed_sequence_that_becomes_nan_leaves_the_others_as_they_are(name: str, implementation: str) -> None:
    operator, kernel = operators.load(name), operators.implementation(name, implementation)
    problem = operator.problem(**PACKED, **LAST[name])
    arrays = drawn(operator, problem, "weak_gate") | {"cu_seqlens": np.array(BOUNDS, np.int64)}
    tokens, states = (np.s_[:, :21], np.s_[:, 48:]), (np.s_[:2], np.s_[3:])
    spoiled = dict.fromkeys(("q", "k", "v", "g", "beta", "d_o"), np.s_[:, 21:48]) | {"initial_state": 2, "dht": 2}
    elsewhere = {output: states if output in ("final_state", "dh0") else tokens for output in OUTPUTS[name]}
    assert_apart(
        Instance.default(operator, kernel, problem, first_arch(kernel, problem)),
        arrays,
        {name: place for name, place in spoiled.items() if name in arrays},
        elsewhere,
    )
