"""Tests of mistakes in an operator's folder: each gives one message with the file, the function and advice."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_operators import Edit, own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.compiler.nvrtc import compile as compile_source
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.errors import TemplateError, UsageError
from tuner.evaluate.check.checker import PLAIN, Job, check
from tuner.evaluate.check.declarations import broken
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.operator import OPERATOR as OPERATOR_OF_KDA
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

OPERATOR, BLOCK, TEMPLATE = "operator.py", "block/implementation.py", "block/kernel.cu.jinja"
RETURNED = 'return {"y": p / p.sum(axis=1, keepdims=True)}'
X = 'Argument("x", "dtype", ("rows", "columns"))'
LAUNCHES = '(Launch("row_softmax_block", (problem.rows, 1, 1), config.threads, shared),)'
TARGET = gpu("sm_80")

AS_THEY_STAND: list[tuple[Edit, str]] = [
    ((OPERATOR, "np.exp(", "np.exp(("), r"operator\.py cannot be imported: SyntaxError: .*line"),
    ((OPERATOR, "import numpy", "import numpyy"), r"No module named 'numpyy' \(operator\.py, line 5\)"),
    ((OPERATOR, "OPERATOR = ", "OP = "), "must define OPERATOR, an Operator named"),
    ((OPERATOR, X, 'Argument("x", "dtype", ("rows", "cols"))'), "argument x has a dim 'cols', which is not a field"),
    ((OPERATOR, X, 'Argument("x", "type", ("rows", "columns"))'), "the dtype of 'type', which is not a field"),
    ((OPERATOR, 'Argument("x"', 'Argument("new"'), r"argument 'new' is a C\+\+ keyword"),
    ((OPERATOR, X, f'{X[:-1]}, optional="use_x")'), "argument x is optional='use_x', which is not a field"),
    ((OPERATOR, ", Role.OUTPUT", ""), "no argument has Role.OUTPUT"),
    ((OPERATOR, 'extent("M", default=4096)', "4096"), r"Problem\.rows must be static\(…\)"),
    ((OPERATOR, "frozen=True, ", ""), "Problem must be a frozen dataclass"),
    ((OPERATOR, '("normal", "one_takes_all")', '"normal"'), "input_kinds is 'normal': give a tuple"),
]
WHEN_CALLED: list[tuple[Edit, str]] = [
    ((OPERATOR, '{"x": (x', '{"z": (x'), r"inputs\(problem, rng, kind\) returned 'z', which is not an argument"),
    ((OPERATOR, 'return {"x"', 'return {} and {"x"'), "left out x: return an array"),
    ((OPERATOR, ".astype(problem.dtype.numpy)", ""), r"x as float64.*: \.astype\(problem\.dtype\.numpy\)"),
    ((OPERATOR, "(problem.rows, problem.columns)", "(7, 7)"), r"x as float16\[7, 7\], the problem says float16\["),
    ((OPERATOR, "np.exp(x", "np.exp(missing * x"), r"failed: NameError: .* \(operator\.py, line 4\d\)"),
    ((OPERATOR, ".astype(np.float64)", ".astype(np.float32)"), "returned y in float32: compute in float64"),
    ((OPERATOR, RETURNED, RETURNED.replace('"y"', '"out"')), "returned out: return a dict with y"),
    ((OPERATOR, RETURNED, "return p"), "returned a ndarray: return a dict with y"),
    ((OPERATOR, RETURNED, 'return {"y": p[:, 1:]}'), r"y of shape \[1, 255\], not \[1, 256\]"),
    ((OPERATOR, RETURNED, 'return {"y": p * np.nan}'), "returned NaN in y"),
    ((OPERATOR, "inputs=inputs,", "inputs=inputs, tails=lambda problem: (),"), "at least one Problem"),
    (
        (OPERATOR, "inputs=inputs,", "inputs=inputs, tails=lambda problem: (Problem(columns=8),),"),
        "tails.* changed columns from 256 to 8: .* change only sizes",
    ),
    ((OPERATOR, "inputs=inputs,", "inputs=inputs, tolerance=lambda problem: {},"), "says nothing about y"),
    ((OPERATOR, "inputs=inputs,", "inputs=inputs, cost=lambda problem: None,"), "returned None: return a Cost"),
    (
        (BLOCK, "return Plan(", "return ("),
        r"block/implementation\.py: plan\(problem, config\) returned a tuple: return a Plan",
    ),
    ((BLOCK, LAUNCHES, LAUNCHES[1:-2]), "launches that are a Launch: give a tuple"),
    ((BLOCK, "problem.rows, 1, 1", "problem.rows / 1, 1, 1"), r"with the grid \(\d+\.0, 1, 1\): give three whole"),
    ((BLOCK, "config.threads, shared", "0, shared"), "with 0 threads per block"),
    (
        (BLOCK, "config.threads, shared", "config.threads, shared, tensor_columns=48"),
        "with 48 columns of tensor memory",
    ),
    ((BLOCK, "(1, 2, 4, 8)", "()"), r"space\(problem, arch\) has the choices \(\) for vector"),
    ((BLOCK, ', "vector": (1, 2, 4, 8)', ""), "choices for threads: give them for each field of Config"),
    (
        (BLOCK, "plan=plan)", "plan=plan, work=lambda problem, config, gpu: 7)"),
        "returned 7: return a tuple with a Work",
    ),
    ((BLOCK, "plan=plan)", "plan=plan, work=lambda problem, config, gpu: ())"), "returned 0 Work: return one for each"),
    ((BLOCK, "plan=plan)", "plan=plan, refusal=lambda problem: None)"), r"refusal\(problem, arch\) failed: TypeError"),
    ((BLOCK, "plan=plan)", "plan=plan, default=lambda problem, arch: {})"), "returned a dict: return a Config"),
    ((BLOCK, "c.vector ==", "c.width =="), r"'width' is not a parameter of this space \(threads, vector\)"),
    ((TEMPLATE, "{{ threads }}", "{{ thread }}"), r"line 9: 'thread' is undefined: a template may read columns,"),
    ((TEMPLATE, '"math.cuh"', "<cuda_fp16.h>"), r"include <cuda_fp16\.h>: there are no headers .* in types\.cuh"),
    ((TEMPLATE, "{{ threads }}", "{{ rows }}"), "sizes at run time are parameters of the kernel"),
    ((TEMPLATE, "signature.", "signature.my_"), "the plan launches no 'my_own_"),
]


def use(name: str) -> None:
    """All that a search asks of an operator, on the emulator, for one config."""
    operator, implementation = operators.load(name), operators.implementation(name, "block")
    problem = operator.problem()
    assert implementation.refusal(problem, TARGET.arch) is None
    config = implementation.default(problem, TARGET.arch)
    assert implementation.space(problem, TARGET.arch).refusal(config) is None
    uncompiled(implementation.plan(problem, config), implementation.work(problem, config, TARGET), TARGET)
    assert operator.cost(problem).bytes
    assert check(Job(InstanceFields(name, "block", to_fields(problem), to_fields(config)), PLAIN[:1])).ok


@pytest.mark.parametrize(("edit", "message"), AS_THEY_STAND, ids=[message[:40] for _, message in AS_THEY_STAND])
def test_a_folder_that_contradicts_itself_is_refused_when_it_is_loaded(
    edit: Edit, message: str, tmp_path: Path
) -> None:
    with own_operator(tmp_path, edit) as name, pytest.raises(TemplateError, match=message):
        operators.load(name)


@pytest.mark.parametrize(("edit", "message"), WHEN_CALLED, ids=[message[:40] for _, message in WHEN_CALLED])
def test_a_function_that_breaks_its_promise_is_named_with_what_to_do(edit: Edit, message: str, tmp_path: Path) -> None:
    with own_operator(tmp_path, edit) as name, pytest.raises(TemplateError, match=message):
        use(name)


def test_a_template_without_a_module_is_named_with_the_file_that_is_missing(tmp_path: Path) -> None:
    with own_operator(tmp_path) as name:
        (tmp_path / name / "block/implementation.py").unlink()
        with pytest.raises(TemplateError, match=r"block/implementation\.py is missing beside kernel\.cu\.jinja"):
            operators.implementations(name)


def test_a_folder_of_an_older_shape_is_told_the_command_that_moves_it(tmp_path: Path) -> None:
    """Before, `block.py` and `block.cu.jinja` stood beside operator.py, and imports named the program's modules."""
    with own_operator(tmp_path) as name:
        folder = tmp_path / name
        text = (folder / "block" / "implementation.py").read_text()
        (folder / "block.py").write_text(text.replace("from ..", "from .").replace("tuner.spec", "tuner.operator"))
        (folder / "block" / "kernel.cu.jinja").rename(folder / "block.cu.jinja")
        operator = (folder / "operator.py").read_text()
        (folder / "operator.py").write_text(operator.replace("tuner.spec", "tuner.operator"))
        shutil.rmtree(folder / "block")
        with pytest.raises(TemplateError, match="an implementation is a folder now") as refused:
            operators.load(name)
        subprocess.run(["bash", "-ec", str(refused.value).partition("Convert them with: ")[2]], check=True)
        assert [implementation.name for implementation in operators.implementations(name)] == ["block"]
        use(name)


def test_an_operator_without_a_template_has_no_implementation(tmp_path: Path) -> None:
    with own_operator(tmp_path) as name:
        (tmp_path / name / "block/kernel.cu.jinja").unlink()
        with pytest.raises(
            TemplateError, match=r"has no implementation: .* holds no <implementation>/kernel\.cu\.jinja"
        ):
            operators.implementations(name)


def test_two_operators_of_one_name_are_refused_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_operator(tmp_path / "one") as name:
        (tmp_path / "two").mkdir()
        (tmp_path / "one" / name).rename(tmp_path / "two" / name)
        (tmp_path / "one" / name).mkdir()
        (tmp_path / "one" / name / "operator.py").write_text("")
        monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path / "two")])
        with pytest.raises(UsageError, match=r"one and in .*two: give one of the folders another name"):
            operators.load(name)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (((TEMPLATE, "{{ vector }}", "1"),), "block/kernel.cu.jinja never reads vector"),
        (
            (
                (BLOCK, '{"warps": warps}', '{"warps": warps, "M": problem.rows}'),
                (TEMPLATE, "int N", "int M = {{ M }}, N"),
            ),
            "the source changes with sizes at run time",
        ),
        (
            ((BLOCK, "plan=plan)", "plan=plan, default=lambda problem, arch: Config(48, 1))"),),
            "the default config is not in the space: threads=48",
        ),
    ],
)
def test_a_promise_beyond_being_right_is_checked(edits: tuple[Edit, ...], message: str, tmp_path: Path) -> None:
    with own_operator(tmp_path, *edits) as name:
        operator, implementation = operators.load(name), operators.implementation(name, "block")
        problem = operator.problem()
        instance = Instance(operator, implementation, problem, implementation.space(problem, TARGET.arch)[0])
        assert [message in error for error in broken(instance, TARGET)] == [True]


def test_a_race_is_named_although_only_its_numbers_were_seen_first(tmp_path: Path) -> None:
    with own_operator(tmp_path, (TEMPLATE, "  __syncthreads();\n", "")) as name:
        operator, implementation = operators.load(name), operators.implementation(name, "block")
        data = to_fields(operator.problem()), {"threads": 256, "vector": 1}
        findings = check(Job(InstanceFields(name, implementation.name, *data))).findings
    assert any(finding.startswith("race at ") for finding in findings)


@pytest.mark.parametrize(("declared", "found"), [(0, True), (32, True), (64, False)])
def test_tensor_memory_that_a_launch_does_not_declare_is_told(declared: int, found: bool, tmp_path: Path) -> None:
    start = "  float* s_sum = s_peak + kWarps;\n"
    edits = (
        (TEMPLATE, '#include "thread.cuh"', '#include "tcgen05.cuh"\n#include "thread.cuh"'),
        (TEMPLATE, start, start + _HOLD),
        (BLOCK, "config.threads, shared", f"config.threads, shared, tensor_columns={declared}"),
    )
    with own_operator(tmp_path, *edits) as name:
        data = to_fields(operators.load(name).problem()), {"threads": 256, "vector": 1}
        findings = check(Job(InstanceFields(name, "block", *data), PLAIN)).findings
    assert any("columns of tensor memory where launches declare" in finding for finding in findings) == found
    assert found or not findings


_HOLD = """  if (threadIdx.x < 32) {
    tcgen05_alloc(shared_address(s_sum), 64);
    tcgen05_relinquish_alloc_permit();
    __syncwarp();
    tcgen05_dealloc(*reinterpret_cast<uint32_t*>(s_sum), 64);
  }
  __syncthreads();
"""


def test_a_kernel_need_not_be_extern_c(tmp_path: Path) -> None:
    with own_operator(tmp_path, (TEMPLATE, 'extern "C" ', "")) as name:
        operator, implementation = operators.load(name), operators.implementation(name, "block")
        instance = Instance.default(operator, implementation, operator.problem(), TARGET.arch)
        compiled = compile_source(render(instance), Options(arch="sm_80"))
        assert not isinstance(compiled, Failed), compiled
        (launch,) = instance.plan().launches
        assert compiled.code(launch.entry)
        assert check(Job(instance.fields())).ok


def test_a_call_goes_straight_to_the_operators_own_function() -> None:
    assert operators.load("kda").call is OPERATOR_OF_KDA.call


def test_importing_the_dispatcher_loads_no_operator() -> None:
    code = "import sys, tuner.dispatcher; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tuner.operators" in loaded
    assert not [operator for operator in loaded if operator.startswith("tuner.operators.")]
