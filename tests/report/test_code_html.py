"""Tests of CUDA C++ and diffs as HTML."""

import re
from html import unescape

import pytest

from tests.report.report_factory import DEFAULT, source
from tuner.report.code_html import cuda, diff

HOSTILE = "</pre><script>alert(\"1\")</script> & 'x'"


def plain(markup: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", markup))


@pytest.mark.parametrize("text", [source(DEFAULT), f"\n\n  int x; /* unclosed {HOSTILE}", "", "\n", "no end of line"])
def test_what_a_reader_sees_and_copies_is_the_source(text: str) -> None:
    assert plain(cuda(text)) == text


@pytest.mark.parametrize("text", [HOSTILE, f"// {HOSTILE}", f'"{HOSTILE}"', f"#include <{HOSTILE}>"])
def test_no_text_becomes_markup(text: str) -> None:
    assert set(re.findall(r"<(\w+)", cuda(text))) <= {"span"}
    assert set(re.findall(r"<(\w+)", diff(text, f"{text} {text}"))) <= {"span"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("c", "// for int 3"),
        ("c", "/* two\nlines */"),
        ("s", '"int // 3"'),
        ("k", "constexpr"),
        ("k", "__shared__"),
        ("k", "__global__"),
        ("nb", "threadIdx"),
        ("m", "0x1Fu"),
        ("m", "1.5e-3f"),
    ],
)
def test_a_piece_has_the_class_of_its_whole_text(kind: str, text: str) -> None:
    pieces = re.findall(r'<span class="(\w+)">(.*?)</span>', cuda(f"a {text}\n"), re.DOTALL)
    assert {result for result, _ in pieces} == {kind}
    assert "\n".join(unescape(piece) for _, piece in pieces) == text  # a span a line


def test_a_name_that_holds_a_keyword_or_a_digit_is_plain() -> None:
    assert cuda("printf3 int_row") == "printf3 int_row"


def test_a_diff_shows_changed_lines_with_their_signs() -> None:
    result = diff("a\nBT = 64\nb", "a\nBT = 128\nb")
    assert plain(result) == "@@ -1,3 +1,3 @@\n a\n-BT = 64\n+BT = 128\n b"
    kinds = re.findall(r'<span class="(\w+)">(.*?)\n?</span>', result, re.DOTALL)
    assert kinds == [("gu", "@@ -1,3 +1,3 @@"), ("gd", "-BT = 64"), ("gi", "+BT = 128")]


def test_equal_texts_have_no_diff() -> None:
    assert diff("a\nb", "a\nb") == ""


def test_frequent_lines_do_not_blow_up_a_diff() -> None:
    body = "  }\n" * 400
    assert len(plain(diff(f"BT = 64\n{body}", f"BT = 128\n{body}")).splitlines()) == 6
