"""Tests of the export to C++: the same machine code, and the plan's launches, also for other sizes."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.claims import example, first_arch
from tests.support.own_operators import own_operator
from tuner import operators
from tuner.base.cache import Cache
from tuner.cli.app import build
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import compile as compile_source
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.standalone.general import general
from tuner.compiler.standalone.launcher import FLAGS, Standalone
from tuner.compiler.toolkit import Options
from tuner.errors import UsageError
from tuner.spec.argument import DeviceTensor
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Plan
from tuner.spec.problem import extents
from tuner.spec.tensor_map import MappedTensor

DOUBLE = Path(__file__).parent / "cuda_double"
_TYPES = {"fp16": 6, "fp32": 7, "bf16": 9, "int32": 3, "int64": 5}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def written(operator: str, implementation: str, name: str = "given", **config: Any) -> tuple[Instance, Standalone]:
    result, known = operators.load(operator), operators.implementation(operator, implementation)
    problem = example(result, known)
    arch = first_arch(known, problem)
    case = Instance(result, known, problem, replace(known.default(problem, arch), **config))
    return case, Standalone(name, result, general(case, arch), render(case), arch.name, ("a test",))


CASES = {
    "one launch": ("flash_attention", "mma_sync", {}),
    "tensor maps": ("flash_attention", "wgmma", {}),
    "workspaces": ("flash_attention", "split_keys", {"splits": 4}),
    "boxes of a size": ("paged_attention", "wgmma", {}),
    "many launches": ("kda", "segmented", {}),
    "sizes that are taken away": ("streaming_attention_backward", "mma_sync", {}),
    "scalars from a problem": ("linear_attention", "lookback", {}),
    "gradients": ("flash_attention_backward", "wgmma", {}),
}


@pytest.fixture(scope="module")
def launchers() -> dict[str, tuple[Instance, Standalone, list[dict[str, int]]]]:
    """Of each case the sizes to launch it with: those of its problem, and of the edges that it serves."""
    results = {}
    for i, (title, (operator, implementation, config)) in enumerate(CASES.items()):
        case, files = written(operator, implementation, f"case_{i}", **config)
        problems = (case.problem, *case.operator.tails(case.problem))
        all_sizes = [{name: getattr(problem, name) for name in extents(problem)} for problem in problems]
        all_sizes.append({**all_sizes[0], "batch": 3})
        results[title] = case, files, [sizes for sizes in all_sizes if files.general.holds(sizes)]
    return results


@pytest.fixture(scope="module")
def printed(launchers: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Of each case, and each of its sizes, what the launcher asks of CUDA; one program for all."""
    folder = tmp_path_factory.mktemp("standalone")
    text = "\n".join(host_text(files, folder) + calls(case, files, sizes) for case, files, sizes in launchers.values())
    calls_all = "\n".join(f"  call_{files.name}();" for _, files, _ in launchers.values())
    (folder / "main.cpp").write_text(f"{text}\nint main() {{\n{calls_all}\n}}\n")
    command = ["g++", "-std=c++17", "-Wall", "-Werror", f"-I{DOUBLE}", f"-I{folder}", "main.cpp", "-o", "main"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    output = subprocess.run([folder / "main"], capture_output=True, text=True, check=True).stdout
    blocks = [block.splitlines() for block in output.split("call\n")[1:]]
    return {title: [blocks.pop(0) for _ in sizes] for title, (_, _, sizes) in launchers.items()}


@pytest.mark.parametrize("title", CASES)
def test_launches_are_those_of_the_plan_at_every_size(launchers: Any, printed: Any, title: str) -> None:
    case, _, all_sizes = launchers[title]
    assert len(all_sizes) > 1
    for sizes, lines in zip(all_sizes, printed[title], strict=True):
        assert [line for line in lines if not line.startswith("grant")] == list(expected(case, sizes))


def test_what_is_not_served_is_refused(tmp_path: Path) -> None:
    case, files = written("flash_attention", "mma_sync")
    sizes = {"batch": 1, "heads": 6, "kv_heads": 4, "seq_q": 8, "seq_k": 8}
    (tmp_path / "main.cpp").write_text(
        host_text(files, tmp_path) + calls(case, files, [sizes]) + f"int main() {{ call_{files.name}(); }}\n"
    )
    subprocess.run(["g++", "-std=c++17", f"-I{DOUBLE}", "main.cpp", "-o", "main"], cwd=tmp_path, check=True)
    output = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["call", "returned", "1"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("title", ["one launch", "tensor maps", "many launches"])
def test_the_text_compiles_to_the_same_machine_code(launchers: Any, title: str) -> None:
    _, files, _ = launchers[title]
    kernels = re.findall(r"namespace kernels \{.*\}  // namespace kernels", files.code(), re.DOTALL)[0]
    text = kernels.replace("__global__", 'extern "C" __global__')
    result = compile_source(Source(files.source.entries, text, (), "cuda"), Options(files.arch), Cache.of("cubin"))
    known = compile_source(files.source, Options(files.arch), Cache.of("cubin"))
    assert isinstance(result, Cubin) and isinstance(known, Cubin)
    assert result.sass_digest == known.sass_digest


@pytest.mark.parametrize("name", ["float", "p", "error", "x"])
def test_a_size_with_the_name_of_something_else_in_a_launcher_is_refused(name: str, tmp_path: Path) -> None:
    edits = [(file, "rows", name) for file in ("operator.py", "block/implementation.py")]
    with (
        own_operator(tmp_path, *edits) as own,
        pytest.raises(UsageError, match=f"^{own}: '{name}' is something else in a C"),
    ):
        written(own, "block")


def test_what_people_write_stays_in_its_comment(tmp_path: Path) -> None:
    edits = [("operator.py", "softmax of each row", r"two\nlines, "), ("operator.py", "of a matrix", r"the last \\")]
    with own_operator(tmp_path, *edits) as own:
        case, files = written(own, "block")
        files = replace(files, about=(case.operator.summary,))
    assert case.operator.summary == "two\nlines,  the last \\"
    assert files.header().startswith("// two lines, the last\n//\n")


@pytest.mark.sampled(1)
@pytest.mark.skipif(which("nvcc") is None, reason="nvcc is not here")
@pytest.mark.parametrize(
    "problem",
    [
        "flash_attention --gpu sm_80 --head-dim 40",
        "flash_attention_backward --gpu sm_90a --implementation wgmma",
        "paged_attention --gpu sm_80 --kv-cache-dtype fp8_e4m3 --descales 1",
        "paged_attention --gpu sm_90a --kv-cache-dtype fp8_e4m3 --implementation mma_sync",
    ],
)
def test_nvcc_compiles_the_files(problem: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(build(), ["render", *problem.split(), "--standalone", str(tmp_path)])
    assert result.exit_code == 0, result.output
    command = result.output.splitlines()[-1].removeprefix("compile it: ")
    assert FLAGS in command
    done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def host_text(files: Standalone, folder: Path) -> str:
    """The .cu without its kernels, whose launches are printed."""
    (folder / f"{files.name}.h").write_text(files.header())
    names = "".join(f'constexpr char const* {entry} = "{entry}";\n' for entry in files.source.entries)
    types = "struct fp16;\nstruct bf16;\nstruct TensorMap { char opaque[256]; };"
    stand_in = f"namespace kernels {{\n{types}\n{names}}}"
    text = re.sub(r"namespace kernels \{.*\}  // namespace kernels", stand_in, files.code(), flags=re.DOTALL)
    return re.sub(r"(kernels::\w+)<<<(.*?)>>>\(", r"print_launch(\1, \2, ", text)


def calls(case: Instance, files: Standalone, all_sizes: Sequence[dict[str, int]]) -> str:
    """A function that launches at each of the sizes, on tensors and a workspace at addresses that it makes up."""
    header, body = files.header(), []
    for sizes in all_sizes:
        lines = [f"p.{name} = {size};" for name, size in sizes.items() if re.search(rf"  int {name} = ", header)]
        for name, address in addresses(case.operator).items():
            if re.search(rf"  void.*\* {name} = nullptr", header):
                lines.append(f"p.{name} = reinterpret_cast<void*>({address}ull);")
        workspace = "reinterpret_cast<void*>(1ull << 40), " if "workspace_bytes" in header else ""
        lines += ["set_dense_strides(p);", 'std::printf("call\\n");']
        lines.append(f'std::printf("returned %d\\n", launch(p, {workspace}nullptr));')
        body.append(f"  {{ {files.name}::Parameters p; using namespace {files.name}; {' '.join(lines)} }}")
    return f"\nvoid call_{files.name}() {{\n" + "\n".join(body) + "\n}\n"


def addresses(operator: Operator[Any]) -> dict[str, int]:
    return {argument.name: (i + 1) << 32 for i, argument in enumerate(operator.arguments)}


def expected(case: Instance, sizes: dict[str, int]) -> list[str]:
    """What the plan of these sizes launches, as the double of CUDA's runtime prints it."""
    problem = replace(case.problem, **sizes)
    plan, operator = case.at(problem).plan(), case.operator
    tensors = {
        argument.name: DeviceTensor(addresses(operator)[argument.name], shape, dense(shape))
        for argument in operator.arguments
        if (shape := argument.shape(problem)) or argument.dims
    } | workspaces(plan)
    lines = []
    for launch in plan.launches:
        words = [launch.entry, *launch.grid, launch.threads, launch.smem_bytes]
        taken, passed = parameters(operator, problem, plan, launch), scalars(operator, problem)
        words += [spelled(pair.value(tensors, passed)) for pair in taken]
        lines.append(f"launch {' '.join(map(str, words))}")
    return [*lines, "returned 0"]


def workspaces(plan: Plan) -> dict[str, DeviceTensor]:
    """One behind the other, at multiples of 256."""
    results, address = {}, 1 << 40
    for space in plan.workspaces:
        results[space.name] = DeviceTensor(address, space.shape, dense(space.shape))
        address += -(-space.nbytes // 256) * 256
    return results


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


def spelled(value: np.generic | MappedTensor) -> str:
    if isinstance(value, MappedTensor):
        lists = (",".join(map(str, extents)) for extents in (value.shape, value.strides[:-1], value.box))
        return f"map:{_TYPES[value.dtype.value]};{value.address};{';'.join(lists)};{_SWIZZLES[value.swizzle]}"
    return f"{value:.9g}" if isinstance(value, np.floating) else str(int(value))
