"""Generate the images of the documentation: screenshots of a report (Chromium) and of terminal output (Rich).

python docs/pictures.py docs/gallery/flash_attention.html [TEXT]    # writes docs/images; TEXT is what a search printed
"""

import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

IMAGES = Path(__file__).parent / "images"
_LARGEST = 150_000  # bytes


def photograph(html: str, name: str, width: int, height: int) -> None:
    """Write a screenshot of a page to docs/images."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("Chromium is not installed")
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        size = [f"--window-size={width},{height}", f"--screenshot={IMAGES / name}"]
        subprocess.run([browser, *flags, *size, page.as_uri()], check=True, capture_output=True)
    if (IMAGES / name).stat().st_size > _LARGEST:
        sys.exit(f"{name} has more than {_LARGEST} bytes: make it smaller")


def figure(html: str, label: str) -> str:
    """Return a page with the style of a report and one of its figures."""
    style = re.search(r"<style>.*?</style>", html, re.DOTALL)
    drawn = re.search(rf'<div class="plot[^>]*aria-label="Figure: {label}.*?</svg></div>', html, re.DOTALL)
    if style is None or drawn is None:
        sys.exit(f"the report has no figure {label!r}")
    return f'<!DOCTYPE html><meta charset="utf-8">{style[0]}<body style="padding-bottom:0">{drawn[0]}</body>'


def terminal(text: str) -> None:
    console = Console(record=True, width=100, file=StringIO(), highlight=False)
    console.print(text, markup=False)
    svg = console.export_svg(title="tuner search")
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)  # no request leaves the reader's machine
    (IMAGES / "terminal.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    html = Path(sys.argv[1]).read_text(encoding="utf-8")
    IMAGES.mkdir(exist_ok=True)
    photograph(html, "report.png", 1180, 760)
    photograph(figure(html, "Slices"), "parameters.png", 1180, 560)
    photograph(figure(html, "Timeline"), "timeline.png", 1180, 330)
    if len(sys.argv) > 2:
        terminal(Path(sys.argv[2]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
