"""Dispatched calls on a real device: CuPy arrays, torch tensors and DLPack, streams, threads and views."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tuner import operators
from tuner.backends import gpu
from tuner.dispatcher.calls import Dispatcher
from tuner.evaluate.check.compare import errors, unexpected_write
from tuner.spec.dtype import DType
from tuner.store.records import Snapshot

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu.available(), reason="needs a CUDA device")]

DTYPES = pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["fp16", "bf16"])


@pytest.fixture(scope="module")
def at() -> Dispatcher:
    return Dispatcher(Snapshot.load([]))


def case(dtype: Any, head_dim: int = 72, seq_k: int = 200, causal: bool = True) -> tuple[Any, dict[str, Any]]:
    operator = operators.load("flash_attention")
    problem = operator.problem(head_dim, DType.of(dtype), causal, batch=2, heads=4, kv_heads=2, seq_q=130, seq_k=seq_k)
    return problem, operator.inputs(problem, np.random.default_rng(0), "normal")


def assert_right(problem: Any, arrays: dict[str, Any], o: np.ndarray, lse: np.ndarray) -> None:
    messages = errors(operators.load("flash_attention"), problem, arrays, {"o": o, "lse": lse})
    assert all(error.ok for error in messages), [error.reason for error in messages]


@DTYPES
@pytest.mark.parametrize("head_dim", [8, 72, 128, 256])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_cupy_arrays_give_right_cupy_arrays(at: Dispatcher, dtype: Any, head_dim: int, causal: bool) -> None:
    import cupy

    problem, arrays = case(dtype, head_dim, causal=causal)
    given = [cupy.asarray(arrays[name]) for name in "qkv"]
    o, lse = at.call("flash_attention", *given, causal=causal)
    assert isinstance(o, cupy.ndarray)
    assert_right(problem, arrays, o.get(), lse.get())


@DTYPES
def test_the_device_and_the_emulator_agree(at: Dispatcher, dtype: Any) -> None:
    import cupy

    _, arrays = case(dtype)
    o, lse = at.call("flash_attention", *(cupy.asarray(arrays[name]) for name in "qkv"))
    same_o, same_lse = at.call("flash_attention", *(arrays[name] for name in "qkv"))
    step = 2**-7 if dtype is ml_dtypes.bfloat16 else 2**-10
    assert np.abs(o.get().astype(np.float64) - same_o.astype(np.float64)).max() <= 4 * step
    assert np.allclose(lse.get(), same_lse, atol=1e-5)


def test_views_and_layouts_need_no_copy(at: Dispatcher) -> None:
    import cupy

    packed = np.random.default_rng(1).standard_normal((2, 60, 3, 4, 64)).astype(np.float16)
    on_device = cupy.asarray(packed)
    o, lse = at.call("flash_attention", *(on_device[:, :, i] for i in range(3)))
    swapped = [cupy.asarray(np.ascontiguousarray(packed[:, :, i].swapaxes(1, 2))) for i in range(3)]
    same_o, same_lse = at.call("flash_attention", *swapped, layout="bhtd")
    assert np.array_equal(o.get(), same_o.get().swapaxes(1, 2))
    assert np.array_equal(lse.get(), same_lse.get())


def test_work_is_ordered_on_the_callers_stream(at: Dispatcher) -> None:
    import cupy

    problem, arrays = case(np.float16)
    with cupy.cuda.Stream(non_blocking=True):
        given = [cupy.asarray(arrays[name]) for name in "qkv"]
        late = [cupy.empty_like(array) for array in given]
        busy = cupy.empty(1 << 26, np.uint8)
        for _ in range(200):  # milliseconds of work, and no library of CuPy's is needed
            busy.data.memset_async(0, busy.nbytes)
        for target, array in zip(late, given, strict=True):
            target.data.copy_from_device_async(array.data, array.nbytes)
        o, lse = at.call("flash_attention", *late, causal=True)
        assert_right(problem, arrays, o.get(), lse.get())


def test_a_foreign_array_gives_cupy_outputs(at: Dispatcher) -> None:
    import cupy

    class Foreign:
        """An array of a library that speaks DLPack only."""

        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

        def __dlpack__(self, **wishes: Any) -> Any:
            return self.array.__dlpack__(**wishes)

    problem, arrays = case(ml_dtypes.bfloat16)
    o, lse = at.call("flash_attention", *(Foreign(cupy.asarray(arrays[name])) for name in "qkv"), causal=True)
    assert isinstance(o, cupy.ndarray)
    assert_right(problem, arrays, o.get(), lse.get())


def test_threads_may_launch_at_once(at: Dispatcher) -> None:
    import cupy

    cases = [case(np.float16, seq_k=n) for n in (130, 150, 170, 190)] * 4

    def call(problem: Any, arrays: dict[str, Any]) -> None:
        o, lse = at.call("flash_attention", *(cupy.asarray(arrays[name]) for name in "qkv"), causal=True)
        assert_right(problem, arrays, o.get(), lse.get())

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(call, *question) for question in cases]:
            future.result()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_torch_tensors_run_on_torchs_stream_and_give_tensors(at: Dispatcher, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    with torch.cuda.stream(torch.cuda.Stream()):
        q, k, v = (torch.randn(2, 4, 130, 64, device="cuda").to(getattr(torch, dtype)) for _ in range(3))
        o, _ = at.call("flash_attention", q, k, v, layout="bhtd")
        expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
        assert o.device == q.device
        assert torch.allclose(o.double(), expected, atol=2e-2 if dtype == "bfloat16" else 2e-3)


def test_a_captured_call_replays_on_new_contents(at: Dispatcher) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    q, k, v = (torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    at.call("flash_attention", q, k, v, layout="bhtd")  # what is compiled and loaded before can be captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = at.call("flash_attention", q, k, v, layout="bhtd")
    q.copy_(torch.randn_like(q))
    graph.replay()
    assert torch.equal(o, at.call("flash_attention", q, k, v, layout="bhtd")[0])


def test_decoding_updates_the_pool_on_the_device_and_no_other_entry_of_it(at: Dispatcher) -> None:
    import cupy

    half = dict.fromkeys(("dtype", "gate_dtype", "beta_dtype"), DType.FP16)
    sizes = {"batch": 3, "seq_len": 1, "heads": 2, "pool_states": 5}
    operator = operators.load("kda")
    problem = operator.problem(64, 64, inplace_final_state=True, use_state_indices=True, **half, **sizes)
    arrays = operator.inputs(problem, np.random.default_rng(0), "weak_gate")
    given = {name: cupy.asarray(arrays[name]) for name in ("q", "k", "v", "g", "beta", "ssm_state_indices")}
    pool = cupy.asarray(arrays["state_pool"])
    o, final_state = at.call("kda", **given, initial_state=pool, inplace_final_state=True)
    outputs = {"o": o.get(), "final_state": final_state.get(), "state_pool": pool.get()}
    assert all(error.ok for error in errors(operator, problem, arrays, outputs))
    assert not unexpected_write(operator, arrays, operator.reference(problem, arrays), outputs)
