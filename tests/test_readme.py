"""Tests of the READMEs: examples are executed unmodified, links lead somewhere, and named tests and files exist."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.test_layers import MODULES, RANK, imports, place
from tuner import operators
from tuner.base.assets import ROOT
from tuner.cli.app import build

TEXT = (ROOT / "README.md").read_text()
# The commands that a newcomer types, in order: those of the README, then those of the pages that it leads to.
GUIDES = ("docs/how-to/search.md", "docs/how-to/cpp.md", "docs/how-to/pytorch.md")
TYPED = "\n".join([TEXT, *((ROOT / page).read_text() for page in GUIDES)])
TUNER = ROOT / "tuner" / "README.md"
FOLDERS = ("benchmarks", "db", "reports", "templates", "tuner")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    lines = [line for block in blocks("console", TYPED) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0] == program]


EXAMPLES = [
    code
    for page in (ROOT / "README.md", *TUNER.parent.glob("*/README.md"))
    for code in blocks("python", page.read_text())
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    for name in ("torch", "transformers", "jax"):
        if re.search(rf"^(import|from) {name}\b", code, re.MULTILINE) and importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def with_options(line: list[str], options: list[str]) -> list[str]:
    """Return a command with options that have a value, in place of those of the same names."""
    kept = [*line]
    for name in options[::2]:
        if name in kept:
            del kept[kept.index(name) : kept.index(name) + 2]
    return [*kept, *options]


QUICK = ("doctor", "explain", "inspect", "operators", "render", "show")  # they search and verify nothing


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "every"])
def test_commands_run_in_the_order_in_which_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, every: bool
) -> None:
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    monkeypatch.chdir(tmp_path)
    for line in commands("tuner"):
        if not every and line[0] not in QUICK:
            continue
        if "here" in line:  # needs a GPU
            continue
        # Of several implementations each gets tries; two are what there is to replay.
        few = ["--budget", "8"] if "--effort" in line else ["--budget", "2", "--workers", "1"]
        tries = few if line[0] == "search" else []
        report = ["--report", str(tmp_path / "r.html")] if line[0] == "search" else []
        out = ["--out", str(tmp_path / "r.html")] if line[0] == "report" else []
        page = ["--out", str(tmp_path / "b.html")] if line[0] == "bench" else []
        done = CliRunner().invoke(build(), with_options(line, [*tries, *report, *out, *page]))
        assert done.exit_code == 0, f"tuner {shlex.join(line)}\n{done.output}"


@pytest.mark.slow
@pytest.mark.skipif("README_SHELL" not in os.environ, reason="searches for many minutes: README_SHELL=1 runs it")
def test_commands_run_as_typed_in_a_fresh_shell(tmp_path: Path) -> None:
    """From an activated environment, in order, with nothing added to them and none of this process's variables."""
    lines = [line for block in re.findall(r"^```(?:console|sh)\n(.*?)^```", TYPED, re.MULTILINE | re.DOTALL)
             for line in block.splitlines()]  # fmt: skip
    typed = [line for line in lines if line.startswith(("tuner ", "printf ", ". "))]
    assert ". .venv/bin/activate      # makes tuner a command of this shell" in typed
    script = [line for line in typed if not line.startswith(". ")]
    activate = [f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH", "set -e", "cd work"]
    home = {"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    (tmp_path / "work").mkdir()
    (tmp_path / "typed.sh").write_text("\n".join([*activate, *script]) + "\n")
    done = subprocess.run(
        ["bash", "-x", str(tmp_path / "typed.sh")], cwd=tmp_path, env=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "work" / "study.db").is_file() and (tmp_path / "work" / "attention").is_dir()


def test_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [line[1] for line in commands("pip")]
    assert named
    assert all(set(line.removeprefix(".").strip("[]").split(",")) <= set(extras) for line in named)


def test_make_has_the_targets_that_are_named() -> None:
    named = {line[0] for line in commands("make") if line}
    makefile = (ROOT / "Makefile").read_text()
    assert named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_the_table_of_operators_names_each_and_its_implementations() -> None:
    rows = {line[1]: line[0] for line in re.findall(r"^(\| \[`(\w+)`\].*)$", TEXT, re.MULTILINE)}
    assert set(rows) == {path.parent.name for path in (ROOT / "templates").glob("*/operator.py")}
    for name, row in rows.items():
        assert all(f"`{implementation.name}`" in row for implementation in operators.implementations(name)), name


def anchors(page: Path) -> set[str]:
    """The fragments by which a page's headings are linked."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", word).replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(
        r"\]\((?!\w+:)([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    ):
        path, _, fragment = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), f"{target} is not there"
        assert not fragment or fragment in anchors(other), f"{target} has no such heading"
    for name in re.findall(r"\b(?:tests|tuner)/[\w/]+\.py\b", text):
        assert (ROOT / name).is_file(), f"{name} is not there"


def test_every_test_that_the_table_of_invariants_names_exists() -> None:
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)`", section(TUNER, "Invariants and the tests that guard them"))
    assert len(named) > len(set(named)) > 50
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def section(page: Path, title: str) -> str:
    _, _, rest = page.read_text().partition(f"## {title}\n")
    return rest.partition("\n## ")[0]


def test_the_arrows_between_layers_lead_to_every_layer_that_is_imported() -> None:
    arrows: dict[str, set[str]] = {}
    for tails, heads in re.findall(r"^    ([\w &]+?) --> ([\w &]+)$", section(TUNER, "Layers"), re.MULTILINE):
        for tail in tails.split(" & "):
            arrows.setdefault(tail, set()).update(heads.split(" & "))
    assert set(arrows) | set.union(*arrows.values()) == set(RANK)
    for layer, target in {pair for path in MODULES for pair in imported(path)}:
        assert target in reached(layer, arrows), f"{layer} imports {target}, to which no arrow leads"


def imported(path: Path) -> set[tuple[str, str]]:
    own = place(path).split("/")[0]
    names = {name.split(".")[1] for name in imports(path) if name.startswith("tuner.")}
    return {(own, name) for name in names & set(RANK) if name != own}


def reached(layer: str, arrows: dict[str, set[str]]) -> set[str]:
    direct = arrows.get(layer, set())
    return direct.union(*(reached(requirement, arrows) for requirement in direct))


@pytest.mark.parametrize("layer", [name for name in RANK if (TUNER.parent / name).is_dir()])
def test_the_readme_of_a_layer_opens_with_its_sentence_and_names_files_that_exist(layer: str) -> None:
    folder = TUNER.parent / layer
    text = (folder / "README.md").read_text()
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert text.split("\n\n")[1].replace("\n", " ") == " ".join(docstring.split("\n\n")[0].split())
    named = re.findall(r"^\| \[?`([\w/]+(?:/|\.py))`", text, re.MULTILINE)
    assert named and [name for name in named if not (folder / name).exists()] == []


@pytest.mark.parametrize("operator", operators.names())
def test_an_operator_s_readme_has_a_row_and_a_page_for_each_implementation(operator: str) -> None:
    folder = operators.load(operator).folder
    first, *_ = (folder / "README.md").read_text().partition("\n## ")
    assert "```console\ntuner " in first
    for implementation in operators.implementations(operator):
        assert f"| [`{implementation.name}`]({implementation.name}/README.md) |" in first
        assert (folder / implementation.name / "README.md").is_file()
