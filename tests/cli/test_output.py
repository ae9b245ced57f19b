"""Tests of output common to all commands: tables, JSON, messages and the progress of a search."""

import errno
import io
import json
import re
from typing import Any

import pytest
import typer
from rich.console import Console

from tuner.cli import display, output


def test_a_table_on_a_terminal_keeps_its_words_and_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "stdout", Console(width=60, force_terminal=True, color_system=None))
    columns = ("kernel", "bytes of DRAM", "what it waits for most of the time", "last of all columns")
    output.table("", columns, [("flash_attention_mma_sync", "580", "loads that arrive late", "one more cell")])
    words = {word for line in capsys.readouterr().out.splitlines() for word in line.split()}
    assert words >= {"flash_attention_mma_sync", "loads", "arrive", "late", "one", "more", "cell", "columns"}


def test_a_table_on_a_narrow_terminal_is_a_list_of_labels(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(output, "stdout", Console(width=30, force_terminal=True))
    output.table("records", ("operator", "problem", "config"), [("kda", "seq_len=8192", "BV=64 prep_groups=2")])
    assert capsys.readouterr().out == "records\n\nkda\n  problem  seq_len=8192\n  config   BV=64 prep_groups=2\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_prints_what_stands_in_brackets(terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    if terminal:
        monkeypatch.setattr(output, "stdout", Console(width=80, force_terminal=True, markup=output.stdout._markup))
    output.table("", ("what to do",), [("pip install 'kerntune[cuda13]'",)])
    assert "kerntune[cuda13]" in capsys.readouterr().out


def test_an_error_that_is_not_finite_is_null_in_json(capsys: Any) -> None:
    output.emit_json({"errors": [{"rmse_ratio": float("inf"), "limit": 0.5}]})
    assert json.loads(capsys.readouterr().out) == {"errors": [{"rmse_ratio": None, "limit": 0.5}]}


def test_a_full_disk_is_one_message(capsys: Any) -> None:
    @output.guarded
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out.json")

    with pytest.raises(typer.Exit) as left:
        write()
    assert left.value.exit_code == 2
    assert "error: No space left on device for out.json: make room where the database" in capsys.readouterr().err


@pytest.mark.parametrize(("width", "standing"), [(40, False), (80, True), (200, True)])
def test_a_terminal_of_any_width_shows_how_far_a_search_is(width: int, standing: bool) -> None:
    console = Console(width=width, force_terminal=True, file=io.StringIO())
    bars = display.live(console)
    shown = "predicted gain 54 % · none for 13 tries · 0:40 left"
    bars.add_task("  searching", total=128, completed=100, standing=shown)
    console.print(bars.get_renderable())
    text = re.sub(r"\x1b\[[0-9;?]*\w", "", console.file.getvalue())  # type: ignore[attr-defined]  # a StringIO
    assert "100/128" in text
    assert (shown in text) == standing
    assert max(map(len, text.splitlines())) <= width
