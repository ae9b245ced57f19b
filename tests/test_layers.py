"""Tests of the layers of tuner/README.md against the modules' imports."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tuner.base.assets import ROOT, TEMPLATES

LAYERS = """
cli
bench farm_worker flashinfer foreign transformers xformers
farm report torch jax
search dispatcher
evaluate
backends
compiler operators
spec store
results
arch base
errors
""".strip().split("\n")
RANK = {name: rank for rank, names in enumerate(reversed(LAYERS)) for name in names.split()}
DOORS = {
    "alembic": "store/sql",
    "cryptography": "store",
    "cuda": "compiler",
    "dask": "farm",
    "distributed": "farm",
    "cupy": "backends/gpu",
    "filelock": "backends/emulator",
    "fla": "torch",
    "jax": "jax",
    "jinja2": "compiler report",
    "msgspec": "results",
    "optuna": "search/sampler report",
    "pygments": "report",
    "pynvml": "evaluate/measure",
    "sqlalchemy": "store/sql",
    "transformers": "transformers",
    "typer": "cli",
    "vl_convert": "report",
}
TUNER = ROOT / "tuner"
MODULES = sorted(path for path in TUNER.rglob("*.py") if path.parent != TUNER or path.stem in RANK)


def place(path: Path) -> str:
    """A module below tuner/, such as `search/sampler/trials`; a package by its folder."""
    return path.relative_to(TUNER).with_suffix("").as_posix().removesuffix("/__init__")


@cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports, also of what its functions import."""
    results = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            results += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            results += [module if is_module(module) else node.module for module in inside]
    return results


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return name.startswith("tuner.") and (path.is_dir() or path.with_suffix(".py").is_file())


def upward(path: Path) -> Iterator[str]:
    """What a module imports of no lower layer."""
    own = place(path).split("/")[0]
    for name in imports(path):
        layer = name.split(".")[1] if name.startswith("tuner.") else own
        if layer != own and RANK[layer] >= RANK[own]:
            yield f"{place(path)} may not import {name}"


def folders_imported() -> dict[str, set[str]]:
    """Which folders of tuner/ the modules of each import."""
    results: dict[str, set[str]] = {}
    for path in MODULES:
        for name in imports(path):
            target = TUNER.joinpath(*name.split(".")[1:])
            folder = target if target.is_dir() else target.parent
            if name.startswith("tuner.") and folder not in (path.parent, TUNER):
                results.setdefault(str(path.parent.relative_to(TUNER)), set()).add(str(folder.relative_to(TUNER)))
    return results


def test_imports_only_point_down() -> None:
    assert [module for path in MODULES for module in upward(path)] == []


def test_every_module_is_in_a_layer() -> None:
    assert {place(path).split("/")[0] for path in MODULES} == set(RANK)
    assert {path.stem for path in TUNER.glob("*.py")} - set(RANK) == {"__init__", "__main__"}


def test_folders_form_no_circle() -> None:
    imported = folders_imported()
    order = list(TopologicalSorter(imported).static_order())  # raises CycleError
    assert all(order.index(below) < order.index(folder) for folder in imported for below in imported[folder])
    assert len(order) > len(RANK)


def test_operators_import_what_authors_are_told_to() -> None:
    for path in sorted(TEMPLATES.rglob("*.py")):
        face = ["tuner.spec", "tuner.arch", "tuner.errors"]
        if path.name == "peers.py":
            face += ["tuner.bench.peers", "tuner.bench.peers.attention"]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("tuner"):
                assert node.module in face, f"{path.relative_to(TEMPLATES)} imports {node.module}; it may: {face}"
            assert not isinstance(node, ast.Import) or not any(name.name.startswith("tuner") for name in node.names)


def test_no_operator_is_known_by_name_outside_of_its_folder() -> None:
    names = {path.parent.name for path in TEMPLATES.glob("*/operator.py")}
    for path in TUNER.rglob("*.py"):
        if path.is_relative_to(TEMPLATES):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Constant) or node.value not in names, f"{path}: {node.value}"
            imported = [name.name for name in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not names & set(imported), f"{path} imports {imported}"


def test_each_dependency_has_one_door() -> None:
    for path in MODULES:
        for name in imports(path):
            doors = DOORS.get(name.split(".")[0], "").split()
            allowed = not doors or any(f"{place(path)}/".startswith(f"{door}/") for door in doors)
            assert allowed, f"{place(path)} imports {name}; only {doors} may"


def test_the_readme_has_the_docstring_of_every_layer() -> None:
    table = (TUNER / "README.md").read_text()
    for name in RANK:
        path = TUNER / name / "__init__.py"
        text = ast.get_docstring(ast.parse((path if path.is_file() else TUNER / f"{name}.py").read_text())) or ""
        sentence = " ".join(text.split("\n\n")[0].split())
        assert sentence and sentence in table, f"{name}: {sentence}"


def test_the_index_of_benchmarks_names_every_program() -> None:
    folder = ROOT / "benchmarks"
    named = set(re.findall(r"`(\w+\.py)`", (folder / "README.md").read_text()))
    assert {path.name for path in folder.glob("*.py")} <= named


def test_importing_the_package_loads_nothing_heavy_and_touches_no_gpu() -> None:
    code = "import sys, tuner; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"cupy", "optuna", "sqlalchemy", "typer", "jinja2", "scipy", "numpy"} & set(loaded)


SEARCH = """
from tuner.cli import main
sys.argv[1:] = "search flash_attention --gpu sm_80 --head-dim 16 --implementation naive --budget 1".split()
main()
"""


@pytest.mark.parametrize(
    "code",
    ["import tuner", "from tuner import dispatcher; dispatcher.kda", SEARCH],
    ids=["tuner", "dispatcher", "search"],
)
def test_nobody_but_bench_loads_peers_or_torch(code: str, tmp_path: Path) -> None:
    code = f"import atexit, sys\natexit.register(lambda: print('all:', *sys.modules))\n{code}"
    here = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=here, cwd=tmp_path, check=False
    )
    loaded = done.stdout.split("all: ")[-1].split()
    assert done.returncode == 0 and "tuner" in loaded, done.stderr
    assert ("tuner.operators.flash_attention.operator" in loaded) == ("search" in code)
    assert [operator for operator in loaded if operator.endswith(".peers") or operator == "torch"] == []


def test_an_application_loads_no_machine_for_ptx_before_a_kernel_needs_it() -> None:
    code = "import sys; from tuner import dispatcher; dispatcher.flash_attention; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tuner.dispatcher.kernels" in loaded and "tuner.backends.ptx" not in loaded
