"""CUDA C++ and unified diffs cut into classed pieces, so that a page can colour them without markup in Python."""

import difflib
import re
from collections.abc import Iterator
from itertools import groupby

Piece = tuple[str, str]  # (class, text); the empty class is plain text

_KEYWORDS = (
    "alignas|asm|auto|bool|break|case|char|const|constexpr|continue|default|do|double|else|enum|extern|false|float|for|"
    "if|inline|int|long|namespace|operator|return|short|signed|sizeof|static|static_assert|struct|switch|template|true|"
    "typedef|typename|union|unsigned|using|void|volatile|while|"
    r"__\w+__|u?int(?:8|16|32|64)_t|size_t|half2?|__half2?|__nv_bfloat16[2]?|float[24]|u?int[24]"
)
_TOKEN = re.compile(
    r"(?P<c>//[^\n]*|/\*.*?\*/)"
    r'|(?P<s>"(?:\\.|[^"\\\n])*")'
    r"|(?P<p>^[ \t]*\#[^\n]*)"
    rf"|(?P<k>\b(?:{_KEYWORDS})\b)"
    r"|(?P<n>\b(?:0[xX][0-9a-fA-F]+|\d[\d.]*(?:[eE][+-]?\d+)?)[uUlLfF]*\b)"
    r"|(?P<_>\w+|\s+|.)",
    re.MULTILINE | re.DOTALL,
)
_DIFF_CLASS = {"+": "add", "-": "del", "@": "hunk"}


def cuda(text: str) -> tuple[Piece, ...]:
    """Comments `c`, strings `s`, preprocessor lines `p`, keywords `k`, numbers `n`; joined, they are `text`."""
    found = ((match.lastgroup or "_", match.group()) for match in _TOKEN.finditer(text))
    return tuple(_joined(found))


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    for kind, run in groupby(pieces, key=lambda piece: piece[0]):
        yield ("" if kind == "_" else kind, "".join(text for _, text in run))


def diff(old: str, new: str, old_name: str, new_name: str) -> tuple[Piece, ...]:
    """A unified diff by line: `add`, `del`, `hunk` or plain; empty where the texts are equal."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="")
    return tuple((_DIFF_CLASS.get(line[:1], "") if place > 1 else "file", line) for place, line in enumerate(lines))
