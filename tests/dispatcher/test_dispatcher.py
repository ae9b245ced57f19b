"""Tests of the dispatcher on the CPU emulator, with kernels of the small operator row_norm and of flash_attention."""

import inspect
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tuner import dispatcher, operators
from tuner.arch import gpu
from tuner.backends.emulator.build import runtime_library
from tuner.base.cache import Cache
from tuner.base.fields import Fields
from tuner.compiler.render import render
from tuner.dispatcher import UntunedWarning
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, MachineError, TemplateError, UsageError
from tuner.evaluate.check.compare import errors
from tuner.results.attempt import Evidence, Identity, Resources
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict
from tuner.spec import command_line
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.operator import Request
from tuner.spec.problem import canonical, to_fields
from tuner.store import record_lines
from tuner.store.records import Snapshot

EMPTY = Snapshot.load([])

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No records but a test's own, and none of its settings left behind."""
    for name in ("TUNER_DB", "TUNER_GPU", "TUNER_STRICT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(dispatcher.functions, "_dispatcher", None)


def rows(count: int = 5, width: int = 32, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, width)).astype(dtype)


WEIGHT = np.linspace(0.5, 2, 32, dtype=np.float32)


def expected(x: np.ndarray, weight: np.ndarray = WEIGHT, epsilon: float = 1e-6) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + epsilon) * weight


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_flash_attention_is_right_in_every_layout_and_dtype(dtype: Any, layout: str, causal: bool) -> None:
    operator = operators.load("flash_attention")
    problem = operator.problem(40, DType.of(dtype), causal, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    arrays = operator.inputs(problem, np.random.default_rng(0), "normal")
    order = (0, 1, 2, 3) if layout == "bthd" else (0, 2, 1, 3)
    inputs = [np.ascontiguousarray(arrays[name].transpose(order)) for name in "qkv"]
    o, lse = dispatcher.flash_attention(*inputs, causal=causal, layout=layout)
    assert o.dtype == dtype
    assert o.flags.c_contiguous
    outputs = {"o": o.transpose(order), "lse": lse}
    assert all(error.ok for error in errors(operator, problem, {**arrays, "softmax_scale": 40**-0.5}, outputs))


def test_flash_attention_takes_q_k_and_v_out_of_one_packed_array() -> None:
    packed = np.random.default_rng(1).standard_normal((1, 9, 3, 2, 64)).astype(np.float16)  # [B, T, 3, H, D]
    q, k, v = (packed[:, :, i] for i in range(3))
    views = dispatcher.flash_attention(q, k, v)
    copies = dispatcher.flash_attention(q.copy(), k.copy(), v.copy())
    assert all(np.array_equal(view, copy) for view, copy in zip(views, copies, strict=True))


def test_the_callers_scale_reaches_the_kernel() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((1, 4, 1, 8)).astype(np.float16) for i in range(3))
    o, _ = dispatcher.flash_attention(q, k, v, softmax_scale=1e-9)
    assert np.allclose(o[0, :, 0], v[0, :, 0].mean(0, dtype=np.float64), atol=2e-3)


VIEWS = {
    "whole": lambda x: x,
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "rows backwards": lambda x: x[::-1].copy()[::-1],
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "columns of a wider array": lambda x: np.hstack([x, x, x])[:, 32:64],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["fp32", "bf16"])
def test_views_are_taken_as_they_are(view: Any, dtype: Any) -> None:
    x = view(rows(dtype=dtype))
    y, rms = dispatcher.row_norm(x, WEIGHT)
    assert np.allclose(y.astype(np.float64), expected(x), atol=1e-6 if dtype is np.float32 else 2e-2)
    assert rms.shape == (5,)


def test_a_scalar_is_not_part_of_the_kind_of_a_call() -> None:
    x = rows()
    small, large = (dispatcher.row_norm(x, WEIGHT, epsilon=epsilon)[0] for epsilon in (1e-6, 100.0))
    assert np.allclose(small, expected(x), atol=1e-6)
    assert np.allclose(large, expected(x, epsilon=100.0), atol=1e-6)


def test_the_stride_of_a_dim_of_size_1_does_not_matter() -> None:
    x = rows(1)
    odd = np.lib.stride_tricks.as_strided(x, x.shape, (4, 4))
    assert np.allclose(dispatcher.row_norm(odd, WEIGHT)[0], expected(x), atol=1e-6)


def test_arrays_of_equal_shape_in_two_layouts_are_two_kinds_of_calls() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((1, 4, 4, 8)).astype(np.float16) for i in range(3))
    as_bthd, _ = dispatcher.flash_attention(q, k, v)
    as_bhtd, _ = dispatcher.flash_attention(*(array.swapaxes(1, 2).copy() for array in (q, k, v)), layout="bhtd")
    assert np.array_equal(as_bthd, as_bhtd.swapaxes(1, 2))


def test_an_input_that_is_not_given_and_an_output_that_is_not_wanted_are_empty() -> None:
    x = rows()
    y, rms = dispatcher.row_norm(x, with_rms=False)
    assert np.allclose(y, expected(x, np.ones(32)), atol=1e-6)
    assert rms.shape == (0,)


def test_short_rows_need_no_more_alignment_than_dense_ones_have() -> None:
    x = rows(6, 12, ml_dtypes.bfloat16)[1:]  # rows of 24 bytes: every other one starts off a multiple of 16
    y, _ = dispatcher.row_norm(x)
    assert np.allclose(y.astype(np.float64), expected(x, np.ones(12)), atol=2e-2)
    with pytest.raises(InputError, match="the stride of rows must be a multiple of 8 bytes"):
        dispatcher.row_norm(rows(6, 14, ml_dtypes.bfloat16)[:, :12])


def test_a_later_call_sees_new_contents_at_the_same_address() -> None:
    x = rows()
    dispatcher.row_norm(x, WEIGHT)
    x *= -1
    assert np.allclose(dispatcher.row_norm(x, WEIGHT)[0], expected(x), atol=1e-6)


def test_truth_values_of_any_kind_select_the_same_code() -> None:
    x = rows()
    outputs = [dispatcher.row_norm(x, WEIGHT, with_rms=value)[0] for value in (True, 1, np.bool_(True))]
    assert all(np.array_equal(output, outputs[0]) for output in outputs)
    assert len(dispatcher.misses()) == 1


def test_threads_may_call_at_once() -> None:
    arrays = [rows(count) for count in range(1, 9)] * 12
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda x: dispatcher.row_norm(x, WEIGHT)[0], arrays))
    assert all(np.allclose(y, expected(x), atol=1e-6) for x, y in zip(arrays, outputs, strict=True))
    assert sum(miss.calls for miss in dispatcher.misses()) == len(arrays)


def test_an_operator_is_a_function_with_its_own_signature_and_words() -> None:
    shown = inspect.signature(dispatcher.flash_attention)
    own = inspect.signature(operators.load("flash_attention").call)
    assert list(shown.parameters) == [*own.parameters, "device"]
    assert "softmax(softmax_scale" in (dispatcher.flash_attention.__doc__ or "")


def test_dir_lists_the_operators() -> None:
    assert {"flash_attention", "row_norm", "explain"} <= set(dir(dispatcher))


def test_an_unknown_operator_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"'flash_atention': did you mean flash_attention"):
        dispatcher.flash_atention  # noqa: B018


q = np.zeros((2, 4, 2, 16), np.float16)  # [B, T, H, D]
padded = np.zeros((2, 4, 2, 20), np.float16)
WRONG = {
    "a list": ({"q": [[1.0]]}, r"q is a list: pass NumPy, CuPy or torch arrays"),
    "None": ({"k": None}, r"k is a NoneType: pass NumPy"),
    "three dims": ({"q": q[0]}, r"q has 3 dims \(4, 2, 16\): it takes 4, \[batch, seq_q, heads, head_dim\]"),
    "batches that differ": ({"k": q[:1]}, r"k \[batch, .*\] = \(1, 4, 2, 16\): batch is 1, but 2 in q \[batch"),
    "lengths that differ": ({"v": q[:, :3]}, r"v .*: seq_k is 3, but 4 in k "),
    "no heads": ({"k": q[:, :, :0], "v": q[:, :, :0]}, r"k .*: kv_heads must be 1 or more"),
    "float64": ({"q": q.astype(float)}, r"q is fp64: it takes bf16, fp16"),
    "big-endian": ({"q": q.astype(">f2")}, r"q is >f2: it takes bf16, fp16"),
    "two dtypes": ({"v": q.astype(ml_dtypes.bfloat16)}, r"v is bf16, but q is fp16"),
    "columns not contiguous": ({"q": q.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)}, r"q .* head_dim must be"),
    "rows not aligned": ({"q": padded[..., :16]}, r"q .* strides of \(320, 80, 40, 2\) bytes: the stride of heads"),
    "an odd address": ({"q": np.zeros(257, np.float16)[1:].reshape(q.shape)}, r"q starts \d+ bytes past a multiple"),
    "heads that do not divide": ({"q": np.zeros((2, 4, 3, 16), np.float16)}, r"kv_heads 2 does not divide heads 3"),
    "head_dim 12": (dict.fromkeys("qkv", np.zeros((2, 4, 2, 12), np.float16)), r"head_dim 12: .* in steps of 8"),
    "an unknown layout": ({"layout": "dbth"}, r"layout 'dbth': pass bthd or bhtd"),
    "causal='no'": ({"causal": "no"}, r"causal 'no': it takes bool"),
    "causal=[True]": ({"causal": [True]}, r"unhashable type"),
    "a scale that is a text": ({"softmax_scale": "1"}, r"softmax_scale '1': must be positive and finite, as a number"),
    "a cap that is a text": ({"softcap": "50"}, r"softcap '50': must be positive and finite, or 0 for none"),
    "a scale of 0": ({"softmax_scale": 0.0}, r"softmax_scale 0.0: must be positive"),
    "device='gpu'": ({"device": "gpu"}, r"device 'gpu': give 'emulator' or 'cuda'"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_an_input_error_that_says_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dispatcher.flash_attention(**{"q": q, "k": q, "v": q, **change})


def test_a_word_that_an_option_does_not_know_is_refused_with_those_that_it_knows() -> None:
    q = np.zeros((1, 4, 1, 16), ml_dtypes.bfloat16)
    with pytest.raises(InputError, match="precision 'fp8': it takes dtype, tf32, fp32"):
        dispatcher.kda(q, q, q, q, q[..., 0], precision="fp8")


def test_an_error_names_the_dims_in_the_callers_layout() -> None:
    with pytest.raises(InputError, match=r"\[batch, heads, seq_q, head_dim\]"):
        dispatcher.flash_attention(q[0], q, q, layout="bhtd")


def test_a_dense_argument_refuses_a_view_with_gaps() -> None:
    with pytest.raises(InputError, match=r"weight .* must be contiguous; pass a copy"):
        dispatcher.row_norm(rows(), np.repeat(WEIGHT, 2)[::2])


def test_the_kind_of_a_call_knows_its_arguments_by_name() -> None:
    at, operator = Dispatcher(EMPTY), operators.load("row_norm")
    at.run(operator, Request({"x": rows(), "weight": WEIGHT}))
    with pytest.raises(TemplateError, match=r"disagree about .*bias"):
        at.run(operator, Request({"x": rows(), "bias": WEIGHT}))


def test_a_wrong_call_is_as_wrong_the_second_time() -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="fp64"):
            dispatcher.row_norm(rows().astype(float), WEIGHT)


def test_cuda_on_a_machine_without_a_gpu_says_so() -> None:
    from tuner.backends.gpu import available

    if available():
        pytest.skip("this machine has a GPU")
    dispatcher.row_norm(rows(), WEIGHT)  # a request prepared for the emulator does not serve the GPU
    with pytest.raises(MachineError, match="no GPU, because there is no CUDA driver: install one, or use NumPy arrays"):
        dispatcher.row_norm(rows(), WEIGHT, device="cuda")


def record(target: str, threads: int, source: str | None = None, **problem: Any) -> TuningRecord:
    """A record of row_norm/naive, with today's source digest unless another is given."""
    operator, naive = operators.load("row_norm"), operators.implementation("row_norm", "naive")
    made_for = operator.problem(**problem)
    config = naive.config(threads)
    digest = render(Instance(operator, naive, made_for, config)).digest if source is None else source
    arch = gpu(target).arch.name
    identity = Identity("row_norm", "naive", canonical(made_for), target, digest, f"-arch={arch}", "nvrtc 13.4", "p/1")
    return TuningRecord(
        identity,
        to_fields(config),
        Evidence.PREDICTED,
        Verdict((OutputError("y", 0.0, 0.0, 1e-6, 1e-6),)),
        Resources(32, 0, 0, threads, 16, "threads", "5a55"),
        None,
        None,
        margin=0.1,
        tried=2,
        tuner="0.1.0",
        created="2026-11-21T00:00:00+00:00",
    )


def snapshot(folder: Path, *records: TuningRecord) -> Snapshot:
    record_lines.write(folder / "records.jsonl", records)
    return Snapshot.load([folder / "records.jsonl"])


def served(at: Dispatcher, x: np.ndarray) -> tuple[str, Fields]:
    explanation = at.explain("row_norm", x, WEIGHT)
    return explanation.implementation, explanation.config


def test_without_a_record_the_default_of_a_fast_implementation_runs() -> None:
    assert served(Dispatcher(EMPTY), rows()) == ("two_pass", {"threads": 32})


def test_the_naive_implementation_runs_where_the_others_refuse() -> None:
    explanation = Dispatcher(EMPTY).explain("row_norm", rows(width=8), np.ones(8, np.float32))
    assert explanation.implementation == "naive"


def test_a_record_of_the_problem_is_served_without_a_warning(tmp_path: Path) -> None:
    at = Dispatcher(snapshot(tmp_path, record("H200", 64, rows=5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, _ = at.call("row_norm", rows(5), WEIGHT)
    assert served(at, rows(5)) == ("naive", {"threads": 64})
    assert np.allclose(y, expected(rows(5)), atol=1e-6)
    assert at.misses() == ()


def test_the_record_with_the_nearest_extents_is_served(tmp_path: Path) -> None:
    at = Dispatcher(snapshot(tmp_path, record("H200", 32, rows=4), record("A100", 64, rows=4096)))
    assert served(at, rows(7)) == ("naive", {"threads": 32})
    assert served(at, rows(900)) == ("naive", {"threads": 64})


def test_a_neighbours_config_outside_the_problems_own_space_leaves_the_call_to_the_next_nearest(tmp_path: Path) -> None:
    misfit, fitting = record("H200", 96, rows=8), record("H200", 64, rows=512)
    at = Dispatcher(snapshot(tmp_path, misfit, fitting), (gpu("H200"),))
    explanation = at.explain("row_norm", rows(9), WEIGHT)
    assert (explanation.config, explanation.record) == ({"threads": 64}, fitting)
    assert "near problem on H200: rows=512 for 9" in explanation.why


def test_a_record_of_the_family_is_served_where_its_config_is_one_of_this_archs_own(tmp_path: Path) -> None:
    misfit, fitting = record("GB200", 96, rows=9), record("B200", 64, rows=9)
    explanation = Dispatcher(snapshot(tmp_path, misfit, fitting), (gpu("B300"),)).explain("row_norm", rows(9), WEIGHT)
    assert (explanation.config, explanation.record) == ({"threads": 64}, fitting)
    assert explanation.why == "record of this problem on B200, of the family of sm_103a"
    assert (
        Dispatcher(snapshot(tmp_path, fitting)).explain("row_norm", rows(9), WEIGHT).gpu == "sm_100a"
    )  # before sm_103a


def test_a_gpu_that_is_not_listed_has_records_of_its_own_and_a_command_that_names_it(tmp_path: Path) -> None:
    card = gpu("RTX 4090 Laptop GPU (sm_89, 76 SMs)")
    own, other = record(card.name, 64, rows=9), record("RTX 4090", 32, rows=9)
    explanation = Dispatcher(snapshot(tmp_path, other, own), (card,)).explain("row_norm", rows(9), WEIGHT)
    assert explanation.record == own
    assert f"--gpu '{card.name}'" in explanation.command
    assert Dispatcher(snapshot(tmp_path, own), (gpu("RTX 4090"),)).explain("row_norm", rows(9), WEIGHT).record == own


def test_a_record_of_another_kernel_is_passed_over_with_the_reason(tmp_path: Path) -> None:
    at = Dispatcher(snapshot(tmp_path, record("H200", 64, width=64)), (gpu("H200"),))
    explanation = at.explain("row_norm", rows(), WEIGHT)
    assert explanation.record is None
    assert "width=64, not 32" in explanation.passed_over[0]


def test_a_record_of_a_choice_that_is_no_more_is_passed_over(tmp_path: Path) -> None:
    gone = record("H200", 0, source="0ld", rows=5)  # the plan of a config with 0 threads would divide by zero
    explanation = Dispatcher(snapshot(tmp_path, gone), (gpu("H200"),)).explain("row_norm", rows(5), WEIGHT)
    assert (explanation.record, explanation.implementation) == (None, "two_pass")
    assert "it is not valid here: threads=0 is not among 32, 64" in explanation.passed_over[0]


def test_a_record_whose_source_has_changed_is_not_served(tmp_path: Path) -> None:
    at = Dispatcher(snapshot(tmp_path, record("H200", 64, source="0ld", rows=5)), (gpu("H200"),))
    explanation = at.explain("row_norm", rows(5), WEIGHT)
    assert (explanation.record, explanation.implementation) == (None, "two_pass")
    assert "its source has changed" in explanation.passed_over[0]


def test_what_is_wrong_with_a_record_of_any_gpu_is_told_and_not_that_it_is_of_another(tmp_path: Path) -> None:
    wrong = record("H200", 64, source="0ld", rows=5), *(record("A100", 64, width=64, rows=n) for n in range(1, 12))
    explanation = Dispatcher(snapshot(tmp_path, *wrong)).explain("row_norm", rows(5), WEIGHT)
    assert "its source has changed" in explanation.passed_over[0]
    assert str(explanation).count("passed over: naive") == 8 and "passed over: 4 more" in str(explanation)


@pytest.mark.parametrize("change", [{"config": {"warps": 2}}, {"implementation": "gone"}], ids=["config", "name"])
def test_a_record_that_names_what_is_no_more_is_not_served(tmp_path: Path, change: dict[str, Any]) -> None:
    old = record("H200", 64, rows=5)
    identity = replace(old.identity, implementation=change.get("implementation", "naive"))
    old = replace(old, identity=identity, config=change.get("config", old.config))
    assert served(Dispatcher(snapshot(tmp_path, old)), rows(5))[0] == "two_pass"


def test_a_miss_warns_once_for_each_kernel_and_names_the_command() -> None:
    at = Dispatcher(EMPTY, (gpu("RTX 5090"),))
    with pytest.warns(UntunedWarning) as caught:
        for x in (rows(3), rows(4), rows(4), rows(4, dtype=ml_dtypes.bfloat16)):
            at.call("row_norm", x, WEIGHT)
    command = "tuner search row_norm --gpu 'RTX 5090' --rows 3"
    assert [command in str(warning.message) for warning in caught] == [True, False]
    assert all(warning.filename == __file__ for warning in caught)


def test_a_miss_on_the_cpu_says_that_an_arch_stands_in_for_the_gpu() -> None:
    warned = {}
    for name in ("RTX 5090", "sm_90a"):
        with pytest.warns(UntunedWarning) as caught:
            Dispatcher(EMPTY, (gpu(name),)).call("row_norm", rows(3), WEIGHT)
        warned[name] = str(caught[0].message)
    assert "in place of sm_90a (TUNER_GPU=… names it here)" in warned["sm_90a"]
    assert "TUNER_GPU" not in warned["RTX 5090"]


def test_misses_are_counted_by_problem() -> None:
    at = Dispatcher(EMPTY)
    for x in (rows(3), rows(4), rows(4)):
        at.call("row_norm", x, WEIGHT)
    assert [(miss.problem["rows"], miss.calls) for miss in at.misses()] == [(4, 2), (3, 1)]


def test_explaining_compiles_and_counts_nothing() -> None:
    at = Dispatcher(EMPTY)
    explanation = str(at.explain("row_norm", rows(3), WEIGHT))
    assert "runs two_pass threads=32" in explanation
    assert "tuner search row_norm" in explanation
    assert at.misses() == ()


def test_strict_makes_a_miss_an_error_with_the_command() -> None:
    with pytest.raises(UsageError, match="no record serves this problem, and TUNER_STRICT is set: `tuner search row_n"):
        Dispatcher(EMPTY, strict=True).call("row_norm", rows(), WEIGHT)


def test_tuner_db_gpu_and_strict_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record_lines.write(tmp_path / "mine.jsonl", [record("H200", 64, rows=5), record("A100", 32, rows=5)])
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "mine.jsonl"))
    monkeypatch.setenv("TUNER_STRICT", "1")
    for name, threads in (("H200", 64), ("A100", 32)):
        monkeypatch.setenv("TUNER_GPU", name)
        dispatcher.reload()
        assert dispatcher.explain("row_norm", rows(5), WEIGHT).config == {"threads": threads}
        dispatcher.row_norm(rows(5), WEIGHT)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TUNER_GPU", "H300", "TUNER_GPU: unknown GPU 'H300': did you mean .*H200"),
        ("TUNER_STRICT", "maybe", r"TUNER_STRICT='maybe': give 1 .* or 0"),
    ],
)
def test_a_bad_value_in_the_environment_is_an_error_that_lists_the_valid_ones(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        dispatcher.row_norm(rows(), WEIGHT)


def test_reload_forgets_the_misses() -> None:
    dispatcher.row_norm(rows(), WEIGHT)
    dispatcher.reload()
    assert dispatcher.misses() == ()


def test_after_warming_up_a_call_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runtime_library()  # once a process, and maybe by an earlier test
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    dispatcher.warmup("row_norm", {"rows": 5}, operators.load("row_norm").problem(dtype=DType.BF16), device="emulator")
    warm = Cache.of("emulator").size()
    for dtype in (np.float32, ml_dtypes.bfloat16):
        dispatcher.row_norm(rows(dtype=dtype), WEIGHT)
    assert warm.entries == 2
    assert Cache.of("emulator").size() == warm


def test_a_gpu_that_is_elsewhere_is_warmed_up_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("H100", "RTX 4090", "H200"):  # the first and the last run the same machine code
        dispatcher.warmup("row_norm", {"rows": 5}, gpu=name)
    assert Cache.of("cubin").size().entries == 4  # each for its compiler, and for machines without one
    with pytest.raises(UsageError, match="unknown GPU 'H1000'"):
        dispatcher.warmup("row_norm", {}, gpu="H1000")
    with pytest.raises(UsageError, match="device 'emulator' and gpu 'H100': leave one out"):
        dispatcher.warmup("row_norm", {}, gpu="H100", device="emulator")


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"T": 5}, r"row_norm has no field 'T' \(known: "), ({"dtype": "fp8"}, "dtype is 'fp8', not among fp16, ")],
)
def test_fields_to_warm_up_that_make_no_problem_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dispatcher.warmup("row_norm", fields, device="emulator")


def test_the_search_that_is_named_makes_the_same_problem() -> None:
    operator = operators.load("flash_attention")
    shared = operator.problem(64, heads=32, kv_heads=16)
    assert command_line.minimal_fields(shared) == {"head_dim": 64, "heads": 32, "kv_heads": 16}
    assert command_line.minimal_fields(operator.problem(64, seq_q=100)) == {"head_dim": 64, "seq_q": 100}
    assert command_line.minimal_fields(operator.problem()) == {}
