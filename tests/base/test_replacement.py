"""Tests of the atomic replacement of files."""

from pathlib import Path

import pytest

from tuner.base.replacement import replacing


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.html"
    with replacing(path) as first, replacing(path) as second:
        assert first != second and not path.exists()
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first" and [*path.parent.iterdir()] == [path]


def test_an_error_leaves_the_old_contents_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="half"), replacing(path) as partial:
        partial.write_text("new")
        raise ValueError("half")
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]
