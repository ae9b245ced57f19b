"""Tests of flash-linear-attention's layer, unmodified, with our registered backend, compared with its own kernels."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("fla.layers", reason="pip install flash-linear-attention")

from tests.clients.fla_layers import LAYERS  # noqa: E402
from tuner.torch import fla  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """From a process of its own: Triton is interpreted from its import on or not at all."""
    result = tmp_path_factory.mktemp("fla") / "results"
    alone = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    script = [sys.executable, "-m", "tests.clients.fla_layers", result]
    subprocess.run(script, env=alone, cwd=ROOT, check=True, timeout=900)
    return dict(torch.load(result))


@pytest.mark.parametrize("layer", LAYERS)
def test_training_and_evaluation_are_those_of_flas_own_kernels(layer: str, results: dict[str, Any]) -> None:
    theirs, ours = results["theirs"][layer], results["ours"][layer]
    assert {name: error(our, theirs[name]) for name, our in ours.items()} == dict.fromkeys(
        theirs, pytest.approx(0, abs=1e-5)
    )


def test_both_modes_of_the_layer_are_served(results: dict[str, Any]) -> None:
    served = [result for result in results["served"] if result.endswith("-> kerntune")]
    assert [implementation.split(".")[-1] for implementation in served] == [
        "chunk_kda -> kerntune",
        "fused_recurrent_kda_fwd -> kerntune",
    ]


def error(found: Any, right: Any) -> float:
    """RMSE ratio."""
    assert (found.shape, found.dtype) == (right.shape, right.dtype)
    return float((found - right).square().mean().sqrt() / right.square().mean().sqrt())


def drawn(tokens: int) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {"q": (2, 32), "k": (2, 32), "v": (2, 32), "g": (2, 32), "beta": (2,)}
    x = {name: torch.randn(3, tokens, *shape) for name, shape in shapes.items()}
    unit = {name: torch.nn.functional.normalize(x[name], dim=-1) for name in ("q", "k")}
    return x | unit | {"g": -x["g"].abs() / 9, "beta": x["beta"].sigmoid()}


@pytest.fixture
def kda() -> Any:
    """FLA's functions, which our backend serves."""
    fla.register()
    return __import__("fla.ops.kda", fromlist=["kda"])


def test_what_is_not_served_goes_on_to_flas_own(kda: Any) -> None:
    """Which cannot run here: its error says that it was asked."""
    with pytest.raises(RuntimeError, match="driver"):
        kda.chunk_kda(**drawn(5), return_intermediate_states=True)


def test_states_of_a_pool_are_updated_in_place(kda: Any) -> None:
    x, pool = drawn(1), torch.randn(5, 2, 32, 32)
    before, entries = pool.clone(), torch.tensor([3, 0, 4])
    o, right = kda.fused_recurrent_kda(**x, initial_state=pool[entries], output_final_state=True)
    step = __import__("fla.ops.kda.fused_recurrent", fromlist=["step"]).fused_recurrent_kda_fwd
    out = torch.empty_like(o)
    same, states = step(**x, initial_state=pool, ssm_state_indices=entries, out=out)
    assert same is out and states is pool
    assert torch.equal(out, o)
    assert torch.equal(pool[entries], right)
    assert torch.equal(pool[[1, 2]], before[[1, 2]])
