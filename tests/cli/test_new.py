"""Tests of a user's operator, from `tuner new` to a record that the dispatcher serves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.own_operators import Edit, own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.base.assets import ROOT
from tuner.cli.app import build
from tuner.compiler import headers
from tuner.evaluate.check.declarations import broken
from tuner.spec.instance import Instance

README = (ROOT / "templates" / "README.md").read_text()
SERVED = {  # what a call then gives, and that a record serves it
    "row_sum": """x = np.eye(5, 256, dtype=np.float16)
assert d.explain("row_sum", x).record; assert abs(d.row_sum(x).astype(float).sum(1) - 1).max() < 1e-2""",
    "my_norm": """x, w = np.full((3, 1024), 2, np.float16), np.arange(1024, dtype=np.float16)
assert "the only races detected" in str(d.explain("my_norm", x, w)); assert (d.my_norm(x, w) == w).all()""",
}
needs_headers = pytest.mark.skipif("cuda_fp16.h" in headers.lacking(), reason="needs the headers of CUDA")


def new(*arguments: object) -> "tuple[int, str]":
    done = CliRunner().invoke(build(), ["new", *map(str, arguments)])
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["row_sum", pytest.param("my_norm", marks=[needs_headers, pytest.mark.slow])])
def test_the_commands_of_the_readme_lead_from_nothing_to_a_record(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if f"tuner new {name}" in block]
    script = block.replace("--effort quick", "--budget 1 --report r.html")
    script += f"python -c 'from tuner import dispatcher as d; import numpy as np; {SERVED[name]}'\n"
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = {**os.environ, "PATH": programs, "TUNER_DB": str(tmp_path / "tuner.db")}
    line = ["bash", "-e", "-c", script]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=here, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("name", ["My-Op", "class", "2d", "", "a b", "../up", "row_söftmax", "_x"])
def test_a_name_that_python_or_cuda_cannot_take_is_refused(name: str, tmp_path: Path) -> None:
    code, text = new(name, "--out", tmp_path)
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert f"error: {name!r} cannot name an operator" in text


def test_the_line_that_makes_it_found_serves_in_a_shell(tmp_path: Path) -> None:
    code, text = new("row_sum", "--out", tmp_path / "it's here")
    line = next(line for line in text.splitlines() if "export" in line)
    result = subprocess.check_output(["bash", "-c", f"{line}\nprintenv TUNER_OPERATORS"], text=True)
    assert code == 0 and result.rstrip().endswith(str(tmp_path / "it's here"))
    code, text = new("row_sum", "--out", tmp_path / "a:b")
    assert code == 2 and "cannot name a folder with ':' in it" in text and not (tmp_path / "a:b").exists()


@pytest.mark.parametrize(
    ("name", "why"), [("kda", "there is an operator kda already"), ("explain", "dispatcher.explain is something else")]
)
def test_a_name_that_is_taken_is_refused(name: str, why: str, tmp_path: Path) -> None:
    code, text = new(name, "--out", tmp_path)
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert why in text


def test_a_folder_that_exists_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    code, text = new("mine", "--out", tmp_path)
    assert (code, list((tmp_path / "mine").iterdir())) == (2, [])
    assert "is there already, and nothing is overwritten" in text


@pytest.mark.parametrize("columns", [1, 7, 96, 256, 1000, 8192, 65536])
def test_the_example_has_a_config_for_every_size_that_it_accepts(columns: int, tmp_path: Path) -> None:
    with own_operator(tmp_path) as name:
        operator, implementation, target = operators.load(name), operators.implementation(name, "block"), gpu("sm_80")
        problem = operator.problem(columns=columns)
        config = implementation.default(problem, target.arch)
        assert broken(Instance(operator, implementation, problem, config), target) == ()


def test_the_work_of_the_readme_is_what_the_example_does(tmp_path: Path) -> None:
    (work,) = re.findall(r"^```python\n(def work.*?)^```", README, re.MULTILINE | re.DOTALL)
    imports = "from tuner.arch import GPU\nfrom tuner.spec.operator import Work\n\n\n"
    edits = (
        ("block/implementation.py", "IMPLEMENTATION = ", f"{imports}{work}\n\nIMPLEMENTATION = "),
        ("block/implementation.py", "plan=plan)", "plan=plan, work=work)"),
    )
    with own_operator(tmp_path, *edits) as name:
        operator, implementation = operators.load(name), operators.implementation(name, "block")
        problem, target = operator.problem(), gpu("sm_90a")
        config = implementation.default(problem, target.arch)
        assert implementation.declares_work
        assert broken(Instance(operator, implementation, problem, config), target) == ()


def search_of(name: str, place: Path) -> str:
    """Return the output of a search without a valid config."""
    options = ["--gpu", "sm_80", "--budget", "2", "--workers", "1", "--quiet"]
    options += ["--db", place / "tuner.db", "--report", place / "r.html"]
    done = CliRunner().invoke(build(), ["search", name, *map(str, options)])
    assert done.exit_code == 1, done.output
    return done.output


def test_a_search_that_finds_nothing_says_why_with_the_compilers_words(tmp_path: Path) -> None:
    with own_operator(tmp_path, ("block/kernel.cu.jinja", "Vector result;", "Vector result")) as name:
        assert re.search(r"2 failed +compile: kernel\.cu\(\d+\): error: expected a \";\"", search_of(name, tmp_path))


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            ("block/kernel.cu.jinja", "peak = -kInfinity, sum", "peak = -INFINITY, sum"),
            "it does not compile for sm_80: kernel.cu",
        ),
        (("block/implementation.py", "2 * warps * 4 ", "2**18 "), "not one block fits an SM of A100: shared memory"),
    ],
)
def test_what_only_the_emulator_runs_is_not_right(
    edit: Edit, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_OPERATORS", str(tmp_path))  # for the process that runs it
    with own_operator(tmp_path, edit) as name:
        done = CliRunner().invoke(build(), ["verify", name, "--gpu", "A100", "--plain"])
    assert done.exit_code == 1
    assert f"BROKEN {why}" in done.output


def test_a_search_warns_of_promises_that_are_not_kept(tmp_path: Path) -> None:
    edits = ("block/kernel.cu.jinja", "{{ vector }}", "1"), ("block/kernel.cu.jinja", "Vector result;", "Vector result")
    with own_operator(tmp_path, *edits) as name:
        warning = "warning: block: block/kernel.cu.jinja never reads vector: a search would try identical kernels"
        assert warning in search_of(name, tmp_path)


def test_an_operator_that_is_broken_is_listed_beside_the_others(tmp_path: Path) -> None:
    with own_operator(tmp_path, ("operator.py", "OPERATOR = ", "OP = ")) as name:
        shown = CliRunner().invoke(build(), ["operators"]).stdout
    assert f"{name}: broken: {name}/operator.py must define OPERATOR" in shown
    assert "\nkda: " in shown
