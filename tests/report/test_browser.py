"""A report in a real browser, where Chromium is installed: it is drawn, it answers to the pointer and to keys, it needs
no script to be read, and the browser has nothing to complain about."""

import json
import re
import shutil
import subprocess
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from tests.report.report_factory import report_data
from tests.support.patience import GENEROUS_S
from tuner import bench, operators, report
from tuner.arch import gpu
from tuner.bench.page import page
from tuner.report import ReportData
from tuner.store.records import Snapshot

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    "--window-size=1200,900",
]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]

POINT = """
const told = {};
for (const mark of document.querySelectorAll(".plot a")) {
  const shape = mark.querySelector("path");
  shape.scrollIntoView({ block: "center" });
  const box = shape.getBoundingClientRect();
  const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };
  const hit = document.elementFromPoint(at.clientX, at.clientY);
  if (!hit?.closest(".plot a")) continue;
  hit.dispatchEvent(new PointerEvent("pointerover", at));
  const tip = document.querySelector(".tip");
  const place = tip.getBoundingClientRect();
  const row = hit.closest("a").getAttribute("href");
  told[row] = {
    tip: Object.fromEntries([...tip.children].map((pair) => [pair.firstChild.textContent, pair.lastChild.textContent])),
    seen: place.left >= 0 && place.top >= 0 && place.right <= innerWidth && place.bottom <= innerHeight,
    alike: document.querySelectorAll(`a.pointed[href="${row}"]`).length,
  };
  hit.dispatchEvent(new PointerEvent("pointerout", at));
}
const figure = document.querySelector(".plot");
const stops = figure.querySelectorAll('a[tabindex="0"]').length;
figure.focus();
const key = (name) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
key("ArrowRight");
const first = document.activeElement.getAttribute("href");
key("ArrowRight");
const heard = document.querySelector('[role="status"]').textContent;
const second = document.activeElement.getAttribute("href");
const keyed = document.querySelectorAll(".tip").length;
key("Escape");
return { told, left: document.querySelectorAll(".tip").length, keyed, stops, heard, moved: first !== second };
"""
MEASURE = """
const plots = [...root.querySelectorAll(".plot svg")];
const size = (each) => { const box = each.getBoundingClientRect(); return [box.width, box.height]; };
return {
  plots: plots.map(size),
  marks: [...root.querySelectorAll(".plot a path")].map(size).filter(([w, h]) => w > 0 && h > 0).length,
  buttons: root.querySelectorAll("button").length,
  wide: root.documentElement.scrollWidth > root.defaultView.innerWidth,
  fill: getComputedStyle(root.querySelector('.plot [fill="var(--dot)"]')).fill,
};
"""


def visit(html: str, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's document when it has settled, and what the browser's console said."""
    file = folder / "page.html"
    file.write_text(html)
    line = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom", file.as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=GENEROUS_S, check=True)
    return done.stdout, [result for result in done.stderr.splitlines() if "CONSOLE" in result]


def driven(html: str, body: str, folder: Path, *flags: str) -> Any:
    """What a script says that was added to the page, and allowed by its policy."""
    script = f"""document.body.append(Object.assign(document.createElement("output"), {{ id: "said", textContent:
      JSON.stringify((() => {{ const root = document; {body} }})()) }}));"""
    allowed = f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}' "
    page = html.replace("script-src ", allowed, 1).replace("</body>", f"<script>{script}</script></body>")
    dom, console = visit(page, folder, *flags)
    assert console == []
    result = re.search(r'<output id="said">(.*?)</output>', dom, re.DOTALL)
    assert result, dom[-500:]
    return json.loads(unescape(result[1]))


@cache
def data(*, measured: bool) -> ReportData:
    return report_data(60, measured=measured)


@pytest.mark.parametrize("measured", [False, True])
def test_a_point_tells_its_config_to_the_pointer(measured: bool, tmp_path: Path) -> None:
    problem = data(measured=measured)
    result = driven(report.render([problem]), POINT, tmp_path)
    assert len(result["told"]) >= 0.9 * len(problem.attempts)  # a few lie below others
    for row, shown in result["told"].items():
        attempt = problem.attempts[int(row.removeprefix("#p1-try-")) - 1]
        spelled = {name: str(value).lower() for name, value in attempt.config.items()}
        assert spelled.items() <= shown["tip"].items()
        assert shown["tip"]["implementation"] == attempt.identity.implementation
        assert shown["tip"]["try"] == row.removeprefix("#p1-try-")
        assert ("time, µs (measured)" if measured else "relative cost (predicted)") in shown["tip"] or attempt.failure
        assert shown["seen"]
        assert shown["alike"] >= (1 if attempt.failure else 2)  # it lights up in both figures
    assert (result["keyed"], result["left"], result["moved"], result["stops"]) == (1, 0, True, 0)
    assert result["heard"].startswith("try ")  # what a screen reader announces


@pytest.mark.parametrize("width", [390, 1200])
def test_figures_have_a_size_and_the_page_is_no_wider_than_its_window(width: int, tmp_path: Path) -> None:
    # A window is never narrower than the browser's own least, so that a frame stands for one.
    inner = report.render([data(measured=False)])
    frame = f'<iframe width="{width}" height="800" srcdoc="{escape(inner)}"></iframe>'
    result = framed(frame, tmp_path)
    assert len(result["plots"]) == 4  # convergence, slices, contours, parallel coordinates
    assert all(w > 900 and h > 100 for w, h in result["plots"])
    assert not result["wide"]
    assert result["buttons"] > 0


def test_without_scripts_the_figures_are_there(tmp_path: Path) -> None:
    html = report.render([data(measured=False)])
    frame = f'<iframe width="1200" height="800" sandbox="allow-same-origin" srcdoc="{escape(html)}"></iframe>'
    result = framed(frame, tmp_path, scripts=False)
    assert result["buttons"] == 0  # which scripts would have made
    assert all(w > 900 and h > 100 for w, h in result["plots"])
    assert result["marks"] >= 2 * len([attempt for attempt in data(measured=False).attempts if not attempt.failure])


def framed(frame: str, folder: Path, *, scripts: bool = True) -> Any:
    """What `MEASURE` finds in a page in a frame."""
    script = f"""addEventListener("load", () => {{
      const root = document.querySelector("iframe").contentDocument;
      document.body.append(Object.assign(document.createElement("output"), {{ id: "said", textContent:
        JSON.stringify((() => {{ {MEASURE} }})()) }})); }});"""
    dom, console = visit(f"<!DOCTYPE html><body>{frame}<script>{script}</script></body>", folder)
    if scripts:
        assert console == []
    result = re.search(r'<output id="said">(.*?)</output>', dom, re.DOTALL)
    assert result, dom[-500:]
    return json.loads(unescape(result[1]))


def test_a_bar_of_a_comparison_tells_its_row(tmp_path: Path) -> None:
    operator = operators.load("streaming_attention")
    forecast = bench.forecast(operator, operator.problem(seq_q=4096), gpu("H200"), Snapshot.load([]))
    result = driven(page([forecast]), POINT, tmp_path)["told"]
    assert [shown["tip"]["contender"] for shown in result.values()] == [row.name for row in forecast.rows]
    assert all(shown["tip"]["bound by"] for shown in result.values())


def test_figures_take_the_colours_of_a_dark_page(tmp_path: Path) -> None:
    html = report.render([data(measured=False)])
    light = driven(html, MEASURE, tmp_path)["fill"]
    dark = driven(html, MEASURE, tmp_path, "--blink-settings=preferredColorScheme=0")["fill"]
    assert (light, dark) == ("rgb(86, 115, 153)", "rgb(127, 157, 194)")


def test_the_browser_has_nothing_to_say(tmp_path: Path) -> None:
    for html in (report.render([data(measured=False), data(measured=True)]), report.render([report_data(20)])):
        dom, console = visit(html, tmp_path)
        assert console == []
        assert "<button" in dom
