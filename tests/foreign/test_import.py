"""`tuner import`: scripts that call tune_kernel and T1 files become folders that verify, or are refused by name."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tuner import operators
from tuner.arch import gpu
from tuner.cli.app import build
from tuner.errors import UsageError
from tuner.evaluate.check.checker import Job, check
from tuner.evaluate.check.declarations import broken
from tuner.foreign.call import Call, of_keywords
from tuner.foreign.folder import write
from tuner.foreign.script import called
from tuner.foreign.untuned import learn
from tuner.spec.argument import Role
from tuner.spec.instance import Instance

H200 = gpu("H200")
ROWS = """
// Each row times a weight of its column, and how many are over a limit; rows of a tile, blocks of two dimensions.
#ifndef taps
#define taps 2
#endif
__constant__ float weight[WIDTH];
__global__ void weigh(float *out, int *over, const float *__restrict__ in, unsigned char *mask, float limit) {
  int const x = blockIdx.x * block_size_x + threadIdx.x;
#pragma unroll loop_unroll_factor_row
  for (int i = 0; i < tile; i++) {
    int const y = (blockIdx.y * tile + i) * block_size_y + threadIdx.y;
    if (x >= WIDTH || y >= HEIGHT) return;
    float sum = 0;
    for (int k = 0; k < taps; k++) sum += in[y * WIDTH + (x + k) % WIDTH] * weight[x];
    out[y * WIDTH + x] = mask[x] ? sum : 0.0f;
    over[y * WIDTH + x] += sum > limit;
  }
}
"""
SCRIPT = """
import sys
from collections import OrderedDict
import cupy as cp
import numpy
import kernel_tuner
from kernel_tuner.file_utils import store_output_file
from kernel_tuner.observers import BenchmarkObserver

class Observer(BenchmarkObserver):
    pass

size = (300, 200)
rng = numpy.random.default_rng(1)
image = rng.standard_normal((200, 300)).astype(numpy.float32)
weight = rng.standard_normal(300).astype(numpy.float32)
mask = rng.integers(0, 2, 300).astype(numpy.uint8)
out, over = cp.zeros_like(image), numpy.ones((200, 300), numpy.int32)
tune_params = OrderedDict(
    block_size_x=[16 * i for i in range(1, 5)], block_size_y=[1, 2, 4], tile=[1, 2, 3], taps=[1, 2, 3],
    loop_unroll_factor_row=[0, 1],
)
results, env = kernel_tuner.tune_kernel(
    "weigh", "weigh.cu", size, [out, over, image, mask, numpy.float32(float(sys.argv[1]))], tune_params,
    grid_div_y=["block_size_y", "tile"], restrictions=["block_size_x * block_size_y <= 128 or tile == 1"],
    cmem_args={"weight": weight}, compiler_options=["-DWIDTH=300", "-DHEIGHT=200", "-std=c++14"],
    observers=[Observer()], iterations=32, verbose=True, metrics={"x": lambda _: 1 / p["time"]},
)
store_output_file("never.json", results, tune_params)
"""


def place(tmp_path: Path) -> Path:
    (tmp_path / "weigh.cu").write_text(ROWS)
    (tmp_path / "rows.py").write_text(SCRIPT)
    return tmp_path / "rows.py"


def test_a_script_becomes_a_folder_that_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(operators.VARIABLE, "")
    script, out = place(tmp_path), tmp_path / "own"
    done = CliRunner().invoke(build(), ["import", str(script), "--out", str(out), "--", "0.5"])
    assert done.exit_code == 0, done.output
    assert "taps stays 2, because another value computes something else" in done.output
    (left,) = [line for line in done.output.splitlines() if line.startswith("left to tuner search")]
    assert set(left.partition(": ")[2].split(", ")) == {"verbose", "observers", "iterations", "metrics"}
    assert not (tmp_path / "never.json").exists()
    with operators.folder(out):
        operator, implementation = operators.load("rows"), operators.implementation("rows", "imported")
        instance = Instance.default(operator, implementation, operator.problem(), H200.arch)
        assert {argument.name: argument.role for argument in operator.written} == {
            "out": Role.OUTPUT,
            "over": Role.UPDATED,
        }
        assert (instance.config.taps, len(implementation.space(operator.problem(), H200.arch))) == (2, 64)
        assert not broken(instance, H200)
        for config in [*implementation.space(operator.problem(), H200.arch)][::17]:
            verdict = check(Job(instance.with_config(config).fields(), arch="sm_90a"))
            assert verdict.ok, (config, verdict.reason)
    assert (out / "rows" / "imported" / "source.cu").read_text() == ROWS.replace(
        "#pragma unroll loop_unroll_factor_row", "UNROLL_loop_unroll_factor_row"
    )


X = np.random.default_rng(2).standard_normal(1 << 17).astype(np.float32)


def call(tmp_path: Path, **other: object) -> Call:
    text = "__global__ void twice(float* y, float* x, int n) { int i = blockIdx.x * block_size_x + threadIdx.x;\n"
    text += "  if (i < n) y[i] = 2 * x[i] + wrong * (i == 3 * n / 8); }"
    n = 1 << 17
    given = {
        "kernel_name": "twice",
        "kernel_source": text,
        "problem_size": n,
        "arguments": [np.zeros(n, np.float32), X, np.int32(n)],
        "tune_params": {"block_size_x": [64, 128, 1024], "wrong": [0, 1]},
    }
    return of_keywords({**given, **other}, tmp_path, "a test")


def verdict_of(tmp_path: Path, name: str, made: Call, **config: object) -> object:
    write(name, tmp_path / name, made, learn(made, {}))
    with operators.folder(tmp_path):
        operator, implementation = operators.load(name), operators.implementation(name, "imported")
        one = Instance.default(operator, implementation, operator.problem(), H200.arch)
        return check(Job(one.with_config(replace(one.config, **config)).fields(), arch="sm_80"))


def test_an_answer_is_what_all_are_judged_by(tmp_path: Path) -> None:
    right = verdict_of(tmp_path, "twice_right", call(tmp_path, answer=[2 * X, None, None]))
    assert right.ok, right.reason
    off = verdict_of(tmp_path, "twice_off", call(tmp_path, answer=[2 * X + 1, None, None], atol=1e-3))
    assert not off.ok and "y: RMSE ratio" in off.reason
    assert verdict_of(tmp_path, "twice_near", call(tmp_path, answer=[2 * X + 1, None, None], atol=1e3)).ok


def test_without_an_answer_what_the_kernel_wrote_untuned_is_right_and_what_changes_it_is_no_parameter(
    tmp_path: Path,
) -> None:
    text = call(tmp_path).source.replace("(i == 3 * n / 8)", "1")
    made = call(tmp_path, kernel_source=text)
    learnt = learn(made, {})
    assert learnt.roles == {"y": Role.OUTPUT} and learnt.fixed == {"wrong": 0}
    assert learn(made, {"wrong": 1}).fixed == {"wrong": 1}
    values = learnt.known["y"]
    np.testing.assert_array_equal(values.values, 2 * X[values.at])
    assert verdict_of(tmp_path, "twice_untuned", made, block_size_x=1024).ok


def test_functions_among_the_restrictions_are_asked_of_every_combination(tmp_path: Path) -> None:
    def odd(p: dict[str, int]) -> bool:
        return p["block_size_x"] != 128 and (p["wrong"] or p["block_size_x"] > 64)

    choices = {"block_size_x": [64, 128, 256], "wrong": [0, 1]}
    made = call(tmp_path, restrictions=["block_size_x <= 1024", odd], tune_params=choices)
    write("asked", tmp_path / "asked", made, learn(made, {}))
    with operators.folder(tmp_path):
        operator, implementation = operators.load("asked"), operators.implementation("asked", "imported")
        space = implementation.space(operator.problem(), H200.arch)
        assert [(config.block_size_x, config.wrong) for config in space] == [(64, 1), (256, 0), (256, 1)]
        assert "what functions of the call say" in str(space.refusal(replace(space[0], block_size_x=128)))


def test_a_kernel_that_is_out_of_bounds_is_refused_where_it_comes_in(tmp_path: Path) -> None:
    text = call(tmp_path).source.replace("if (i < n)", "if (i <= n)")
    with pytest.raises(UsageError, match=r"fails on the PTX interpreter: .*4 bytes at offset 524288 of x"):
        learn(call(tmp_path, kernel_source=text, problem_size=(1 << 17) + 1), {})


REFUSED = [
    ({"texmem_args": {"t": np.zeros(4)}}, "texmem_args: textures are not supported"),
    ({"verify": lambda *_: True}, "verify: outputs are compared by their RMSE ratio"),
    ({"lang": "C"}, "lang='C': only CUDA kernels are supported"),
    ({"lang": "OpenCL"}, "lang='OpenCL'"),
    ({"kernel_source": lambda _: ""}, "kernel_source is a function"),
    ({"kernel_source": "absent.cu"}, "no such file"),
    ({"kernel_source": "__global__ void f(cudaTextureObject_t t) {}"}, "reads a texture"),
    ({"problem_size": lambda _: 4}, "problem_size is a function: write it as text"),
    ({"grid_div_x": lambda _: 4}, "grid_div_x is a function"),
    ({"restrictions": lambda p: p["absent"]}, "a function of restrictions failed on a dict of the parameters"),
    ({"restrictions": 3}, "restrictions has 3: give texts, or functions"),
    ({"restrictions": ["open('x')"]}, "is not an arithmetic expression of the parameters"),
    ({"restrictions": ["block_size_y > 1"]}, "block_size_y is none of block_size_x, wrong"),
    ({"arguments": [np.zeros(4), 3, np.int32(4)]}, "argument x is a int: give NumPy arrays"),
    ({"arguments": [np.zeros(4, complex), np.zeros(4), np.int32(4)]}, "holds complex128"),
    ({"compiler_options": ["-use_fast_math"]}, "compiler_options has '-use_fast_math'"),
    ({"answer": [np.zeros(3), None, None]}, "answer for y has 3 elements"),
    ({"tune_params": {"block size": [1]}}, "cannot be a macro"),
    ({"frequency": 3}, "tune_kernel has no option 'frequency'"),
]


@pytest.mark.parametrize(("other", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_there_is_not_is_refused_by_name(other: dict[str, object], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why.replace("(", r"\(").replace(")", r"\)")):
        made = call(tmp_path, **other)
        write("refused", tmp_path / "refused", made, learn(made, {}))
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nowhere", "failed before it called tune_kernel: ModuleNotFoundError"),
        ("import sys; sys.exit('usage')", "ended before it called tune_kernel (usage): give its arguments after --"),
        ("x = 1", "never called tune_kernel"),
        ("from kernel_tuner import run_kernel\nrun_kernel('k', '', 1, [], {})", "calls run_kernel"),
    ],
)
def test_a_script_without_a_call_says_why(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    with pytest.raises(UsageError) as error:
        called(tmp_path / "script.py")
    assert why in str(error.value)


def test_a_t1_file_becomes_a_folder_that_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(operators.VARIABLE, "")
    (tmp_path / "weigh.cu").write_text(
        '#include "sizes.h"\n'
        + ROWS.replace("(float *out, int *over, ", "(float *out, ")
        .replace("over[y", "// over[y")
        .replace("unsigned char *mask, float limit", "float *weight_, float limit")
        .replace("mask[x] ?", "limit < 1 ?")
        .replace("#pragma unroll loop_unroll_factor_row", "")
    )
    (tmp_path / "sizes.h").write_text("#define WIDTH 256\n#define HEIGHT 96\n")
    described = {
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": "block_size_x", "Type": "int", "Values": "[32 * i for i in range(1, 5)]", "Default": 64},
                {"Name": "block_size_y", "Type": "int", "Values": "[1, 2]"},
                {"Name": "tile", "Type": "int", "Values": "[1, 4]", "Default": 4},
                {"Name": "taps", "Type": "int", "Values": "[3]"},
            ],
            "Conditions": [{"Expression": "tile == 1 || block_size_y == 1", "Parameters": ["tile", "block_size_y"]}],
        },
        "KernelSpecification": {
            "Language": "CUDA",
            "KernelName": "weigh",
            "KernelFile": "weigh.cu",
            "LocalSize": {"X": "block_size_x", "Y": "block_size_y", "Z": "1"},
            "GridDivX": ["block_size_x"],
            "GridDivY": ["block_size_y", "tile"],
            "ProblemSize": [256, 96],
            "Arguments": [
                {
                    "Name": "out",
                    "Type": "float",
                    "MemoryType": "Vector",
                    "FillType": "Constant",
                    "FillValue": 0.0,
                    "Size": "ProblemSize[0]*ProblemSize[1]",
                },
                {
                    "Name": "in",
                    "Type": "float",
                    "MemoryType": "Vector",
                    "FillType": "Random",
                    "FillValue": 1.0,
                    "Size": "ProblemSize[0]*ProblemSize[1]+max(taps)",
                },
                {
                    "Name": "weight",
                    "Type": "float",
                    "MemoryType": "Vector",
                    "FillType": "Random",
                    "FillValue": 1.0,
                    "Size": "256",
                    "MemType": "Constant",
                },
                {"Name": "limit", "Type": "float", "MemoryType": "Scalar", "FillValue": 0.5},
            ],
        },
    }
    (tmp_path / "weigh.json").write_text(json.dumps(described))
    done = CliRunner().invoke(build(), ["import", str(tmp_path / "weigh.json"), "--out", str(tmp_path / "own")])
    assert done.exit_code == 0, done.output
    with operators.folder(tmp_path / "own"):
        operator, implementation = operators.load("weigh"), operators.implementation("weigh", "imported")
        instance = Instance.default(operator, implementation, operator.problem(), H200.arch)
        assert (instance.config.block_size_x, instance.config.tile) == (64, 4)
        assert {constant.name for constant in operator.constants} == {"weight"}
        verdict = check(Job(instance.fields(), arch="sm_90a"))
        assert verdict.ok, verdict.reason
    described["KernelSpecification"]["Arguments"] = []
    (tmp_path / "empty.json").write_text(json.dumps(described))
    done = CliRunner().invoke(build(), ["import", str(tmp_path / "empty.json"), "--out", str(tmp_path / "own")])
    assert done.exit_code == 2 and "lists no Arguments" in done.output


def test_of_host_code_the_kernels_around_which_it_stands_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(operators.VARIABLE, "")
    place(tmp_path)
    (tmp_path / "host.cu").write_text("int run(float* out) { return 0; }")
    script = SCRIPT.replace('"weigh", "weigh.cu"', '"run", ["host.cu", "weigh.cu"]').replace(
        "iterations=32", 'lang="C"'
    )
    script = script.replace("mask, numpy.float32", "mask, weight, numpy.float32").replace(
        'cmem_args={"weight": weight},', ""
    )
    (tmp_path / "host.py").write_text(script)
    words = ["import", str(tmp_path / "host.py"), "--out", str(tmp_path / "own")]
    done = CliRunner().invoke(build(), [*words, "--", "0.5"])
    assert done.exit_code == 2
    text = " ".join(done.output.split())
    assert "run is host code (lang='C'); name a kernel by --kernel" in text
    assert "weigh(float *out, int *over, const float *__restrict__ in, unsigned char *mask, float limit)" in text
    assert "Symbols: weight." in text and "3: uint8[300], 4: float32[300], 5: float32[]" in text
    chosen = ["--kernel", "weigh", "--source", "weigh.cu", "--arguments", "0,1,2,3,5", "--constant", "weight=4"]
    done = CliRunner().invoke(build(), [*words, *chosen, "--", "0.5"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "own" / "host" / "weight.npy").is_file()
