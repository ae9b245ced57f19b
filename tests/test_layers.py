"""The layers of tuner/README.md, checked against what the modules import."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = """
errors canonical
assets dtype result source elf toolkit pool exclusive policy samples ledger constraint
arch tensor_map cache places space sass screening final peers sizes
argument cupy_folder
operator tuned portfolio
instance usage draw outline
contract defaults generality
cubin operators arrays records_read sampler store device
render standalone verify edges lint predict floor timeline records nvrtc binding arena timer trial
emulator ptx choice judge history belief promises
gpu check simulated worker undeclared
emulated executed evaluate canary
kernels untuned race measure
tune dispatcher report replay
summary torch settle bench
session
campaign
cli
""".strip().split("\n")
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
DOORS = {
    "cupy": {"gpu"},
    "cuda": {"nvrtc"},
    "optuna": {"sampler"},
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "typer": {"cli"},
    "jinja2": {"render", "report"},
    "pygments": {"report"},
    "vl_convert": {"report"},
}
MODULES = sorted((ROOT / "tuner").rglob("*.py"))


def noun(path: Path) -> str:
    """The module a file belongs to: `store_schema.py` and `store/schema.py` are both parts of `store`."""
    name = path.relative_to(ROOT / "tuner").parts[0].removesuffix(".py")
    return name if name in RANK else name.split("_")[0]


@cache
def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module] if node.module != "tuner" else [f"tuner.{alias.name}" for alias in node.names]
    return found


def upward(path: Path) -> Iterator[str]:
    """What a module imports of no lower layer."""
    for name in imports(path):
        if name.startswith("tuner.") and not name.startswith("tuner.__"):
            target = name.split(".")[1]
            target = target if target in RANK else target.split("_")[0]
            if target != noun(path) and RANK[target] >= RANK[noun(path)]:
                yield f"{path.name} may not import tuner.{target}"


def test_imports_only_point_down() -> None:
    assert [each for path in MODULES if path.stem not in ("__init__", "__main__") for each in upward(path)] == []


def test_each_dependency_has_one_door() -> None:
    for path in MODULES:
        for name in imports(path):
            allowed = DOORS.get(name.split(".")[0])
            assert allowed is None or noun(path) in allowed, f"{path.name} imports {name}; only {allowed} may"


def test_the_readme_names_every_module() -> None:
    table = (ROOT / "tuner" / "README.md").read_text().split("## Layers")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    parts = {noun + part for noun in named for part in named if part.startswith("_")}
    modules = {path.relative_to(ROOT / "tuner").parts[0].removesuffix(".py") for path in MODULES}
    assert {each for each in modules if not each.startswith("_")} <= named | parts


def test_the_index_of_benchmarks_names_every_program() -> None:
    folder = ROOT / "benchmarks"
    named = set(re.findall(r"`(\w+\.py)`", (folder / "README.md").read_text()))
    assert {path.name for path in folder.glob("*.py")} <= named


def test_importing_the_package_loads_nothing_heavy_and_touches_no_gpu() -> None:
    code = "import sys, tuner; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"cupy", "optuna", "sqlalchemy", "typer", "jinja2", "scipy", "numpy"} & set(loaded)


def test_an_application_loads_no_machine_for_ptx_before_a_kernel_needs_it() -> None:
    code = "import sys; from tuner import dispatcher; dispatcher.flash_attention; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tuner.kernels" in loaded and "tuner.ptx" not in loaded
