"""ReportData → one self-contained HTML file, or a short Markdown text."""

import os
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import accumulate, takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import jinja2

from tuner.base.assets import REPORTS
from tuner.base.replacement import replacing
from tuner.errors import MachineError
from tuner.report import code_html, notation, vega
from tuner.report.brief import brief, terms_of_winner
from tuner.report.clocks import clocks
from tuner.report.convergence_figure import convergence
from tuner.report.data import ReportData
from tuner.report.export import script_json
from tuner.report.gains import gains
from tuner.report.parallel_figure import parallel
from tuner.report.section import sections
from tuner.report.slices import slices
from tuner.report.timelines import timelines
from tuner.search.portfolio import Family
from tuner.spec.command_line import minimal_fields
from tuner.spec.problem import canonical

LIMIT = 4_000_000  # maximum bytes of a page, which fits a mail and opens quickly in a browser
_LOG_HEAD, _LOG_TAIL = 3000, 1500  # characters of a log on a page
_LONGEST = 150  # maximum characters of a name; file systems allow 255 bytes
_ODD = re.compile(r"[^A-Za-z0-9_.+-]")  # characters that are replaced in file names


def render(data: Sequence[ReportData], families: Sequence[Family] = ()) -> str:
    """Return the page of one or more problems and their portfolios; the same data give the same bytes.

    If a page exceeds `LIMIT` bytes, its last problems are abbreviated, with a note.
    """
    shown = sections(data)
    problems: Any = _environment(escape=True).get_template("section.html.jinja").make_module()
    drawn = cache(lambda index: problems.section(shown[index], len(shown) > 1))
    sizes = accumulate(len(drawn(index).encode()) for index in range(len(shown)))
    full = sum(1 for _ in takewhile(lambda size: size <= LIMIT, sizes))  # upper bound; further problems are not drawn
    while True:
        json = script_json(data[:full], families)
        page = document("report.html.jinja", sections=shown, drawn=drawn, whole=full, families=families, json=json)
        if (size := len(page.encode())) <= LIMIT or full == 0:
            return page
        full = min(full - 1, full * LIMIT // size)


def document(template: str, **values: object) -> str:
    """Return a page from any template in reports/ with style and script inlined and external resources blocked."""
    style, script = _asset("style.css"), _asset("script.js")
    page = _environment(escape=True).get_template(template)
    return page.render(style=style, script=script, csp=_policy(style, script), **values)


def markdown(data: Sequence[ReportData], families: Sequence[Family] = ()) -> str:
    """Return the short version: winner, margin, verdict, runner-ups, failures, and the command to repeat it."""
    return _environment(escape=False).get_template("report.md.jinja").render(sections=sections(data), families=families)


def default_path(about: str, gpu: str, problems: Sequence[Any], database: str = "") -> Path:
    """Return `reports/out/<about>-<gpu>-<problem>.html`, in a checkout or else in the current folder.

    The name contains the problem's non-default fields; equal problems have equal names, and different ones different
    names. Reports from another `database` than the user's have distinct names.
    """
    folder = REPORTS / "out" if (REPORTS.parent / "pyproject.toml").is_file() else Path("reports/out")
    texts = [canonical(problem) for problem in problems]
    words = _words(problems[0]) if len(problems) == 1 else [f"{len(problems)}_problems", _digest(texts)]
    name = "-".join([about, gpu.replace(" ", "_"), *words, *([f"db_{_digest([database])}"] if database else [])])
    plain = _ODD.sub("_", name)
    if plain != name or len(name) > _LONGEST:
        plain = f"{plain[:_LONGEST]}-{_digest([about, gpu, *texts, database])}"
    return folder / f"{plain}.html"


def _words(problem: Any) -> list[str]:
    """Return the words of a problem: `["head_dim_72", "causal"]`."""
    items = minimal_fields(problem).items()
    return [name if value is True else f"no_{name}" if value is False else f"{name}_{value}" for name, value in items]


def _digest(words: Sequence[str]) -> str:
    return sha256("\n".join(words).encode()).hexdigest()[:8]


def prepare(path: Path) -> None:
    """Create the folder of a page before long work. Raises MachineError if the page cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent) as draft:
            os.posix_fallocate(draft.fileno(), 0, LIMIT)
    except OSError as error:
        raise _refused(path, error) from error


def write(html: str, path: Path) -> None:
    """Replace `path` atomically. Raises MachineError."""
    try:
        with replacing(path) as partial:
            partial.write_text(html, encoding="utf-8")
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> MachineError:
    return MachineError(f"cannot write the report to {path}: {error.strerror}; name another place")


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this page's own style and script, and no external resources."""
    sources = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return (REPORTS / name).read_text(encoding="utf-8")


@cache
def _environment(*, escape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REPORTS),
        undefined=jinja2.StrictUndefined,
        autoescape=escape,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {spelling.__name__: spelling for spelling in notation.SPELLINGS}
    environment.filters |= {
        "shortened": _shortened,
        "cell": _cell,
        "cuda": code_html.cuda,
        "brief": brief,
        "terms_of_winner": terms_of_winner,
        "labelled": vega.labelled,
    }
    environment.globals |= {"diff": code_html.diff, "convergence": convergence, "parallel": parallel, "clocks": clocks}
    environment.globals |= {"slices": slices, "timelines": timelines, "gains": gains}
    return environment


def _printable(value: object) -> object:
    """Raise TypeError for values that readers should never see; a template must explain an absent value."""
    if value is None or value != value:
        raise TypeError(f"the report would print {value!r}")
    return value


def _shortened(log: str) -> str:
    """Return the head and the tail of a long log."""
    left_out = len(log) - _LOG_HEAD - _LOG_TAIL
    if left_out <= 0:
        return log
    return f"{log[:_LOG_HEAD]}\n… {left_out:,} characters left out …\n{log[-_LOG_TAIL:]}"


def _cell(text: str) -> str:
    """Return text for a Markdown table or line: no pipes, no breaks, no markup."""
    flat = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\|`*<[]" else char for char in flat)
