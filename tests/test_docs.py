"""Tests of the documentation site: its examples run, its commands exist, and its tables are complete."""

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

from tests.test_readme import QUICK, blocks
from tuner.base.assets import ROOT
from tuner.cli.app import build

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OPTIONAL = ("torch", "transformers", "jax")


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks("python", page.read_text())], ids=name_of)
def test_the_examples_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    program = "\n".join(blocks("python", page.read_text()))
    for package in OPTIONAL:
        needed = re.search(rf"^(import|from) (tuner\.)?{package}\b", program, re.MULTILINE)
        if needed and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_are_understood(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "tuner.db"))
    monkeypatch.chdir(tmp_path)
    lines = [
        line
        for language in ("console", "sh")
        for block in blocks(language, page.read_text())
        for line in block.splitlines()
    ]
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] != ["tuner"] or "row_sum" in words:  # an operator that the reader makes
            continue
        command = words[1:] if words[1] in QUICK else [*words[1:], "--help"]
        done = CliRunner().invoke(build(), command)
        assert done.exit_code == 0, f"{line}\n{done.output}"


def test_every_environment_variable_is_documented() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "tuner").rglob("*.py"))
    read = set(re.findall(r"\bTUNER_[A-Z_]+\b", source))
    table = (DOCS / "reference" / "environment.md").read_text()
    assert read == set(re.findall(r"^\| `(TUNER_\w+)`", table, re.MULTILINE))


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert [page for page in map(name_of, PAGES) if page not in navigation] == []


def test_every_extra_that_users_choose_is_on_the_install_page() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (DOCS / "install.md").read_text()
    for_developers = {"clients", "cutlass", "dev", "docs", "triton"}
    assert [name for name in extras if name not in for_developers and f"`{name}`" not in page] == []


def generated() -> set[str]:
    """The pages that docs/generate.py writes."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    notes = {module.page_of(path) for path in module.NOTES}
    return notes | {"design/index.md", "reference/cli.md", "reference/gpus.md", "reference/operators.md"}


def test_links_between_pages_lead_to_a_page() -> None:
    known = {*map(name_of, PAGES), *generated()}
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
            target = os.path.normpath(Path(name_of(page)).parent / link)
            assert target in known or (DOCS / target).is_file(), f"{name_of(page)}: {link}"
