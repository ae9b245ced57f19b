"""CUDA pieces and diffs of a report."""

import pytest

from tests.report.report_factory import DEFAULT, source
from tuner.report.highlight import cuda, diff


def test_the_pieces_of_a_source_join_to_the_source() -> None:
    text = source(DEFAULT) + 'const char* s = "a \\" // no comment"; /* unclosed'
    assert "".join(piece for _, piece in cuda(text)) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("c", "// for int 3"),
        ("c", "/* two\nlines */"),
        ("s", '"int // 3"'),
        ("p", "#include <x>"),
        ("k", "constexpr"),
        ("k", "__shared__"),
        ("n", "0x1Fu"),
        ("n", "1.5e-3f"),
    ],
)
def test_a_piece_has_the_class_of_its_whole_text(kind: str, text: str) -> None:
    assert cuda(text) == ((kind, text),)


def test_a_name_that_holds_a_keyword_or_a_digit_is_plain() -> None:
    assert cuda("printf3 int_row") == (("", "printf3 int_row"),)


def test_a_diff_shows_changed_lines_with_their_signs() -> None:
    found = diff("a\nBT = 64\nb", "a\nBT = 128\nb")
    assert found == (("hunk", "@@ -1,3 +1,3 @@"), ("", " a"), ("del", "-BT = 64"), ("add", "+BT = 128"), ("", " b"))


def test_equal_texts_have_no_diff() -> None:
    assert diff("a\nb", "a\nb") == ()


def test_frequent_lines_do_not_blow_up_a_diff() -> None:
    body = "  }\n" * 400
    assert len(diff(f"BT = 64\n{body}", f"BT = 128\n{body}")) == 6
