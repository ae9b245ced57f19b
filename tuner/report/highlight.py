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


def cuda(text: str) -> tuple[Piece, ...]:
    """Comments `c`, strings `s`, preprocessor lines `p`, keywords `k`, numbers `n`; joined, they are `text`."""
    found = ((match.lastgroup or "_", match.group()) for match in _TOKEN.finditer(text))
    return tuple(_joined(found))


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    for kind, run in groupby(pieces, key=lambda piece: piece[0]):
        yield ("" if kind == "_" else kind, "".join(text for _, text in run))


def diff(old: str, new: str) -> tuple[Piece, ...]:
    """A unified diff from `old` to `new` by line: `add`, `del`, `hunk` or plain; empty where the texts are equal.

    Unlike difflib.unified_diff it does not give up on lines that occur often, of which generated code is full.
    """
    before, after = old.splitlines(), new.splitlines()
    found: list[Piece] = []
    for hunk in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(3):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = hunk[0], hunk[-1]
        found.append(("hunk", f"@@ -{i1 + 1},{i2 - i1} +{j1 + 1},{j2 - j1} @@"))
        for change, i, i_end, j, j_end in hunk:
            if change == "equal":
                found += [("", f" {line}") for line in before[i:i_end]]
            else:
                found += [("del", f"-{line}") for line in before[i:i_end]]
                found += [("add", f"+{line}") for line in after[j:j_end]]
    return tuple(found)
