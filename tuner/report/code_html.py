"""CUDA C++ and unified diffs as coloured HTML; reports/style.css defines the colours."""

import difflib
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import groupby

from markupsafe import Markup
from pygments import format
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, DiffLexer
from pygments.token import Comment, Generic, Keyword, Name, Number, String, Text, _TokenType

_CODE = (Comment.PreprocFile, Comment.Preproc, Comment, Keyword, Name.Builtin, Number, String)
_DIFF = (Generic.Inserted, Generic.Deleted, Generic.Subheading)


@lru_cache(maxsize=256)  # problems that differ in sizes only often have the same source
def cuda(text: str) -> Markup:
    return _coloured(text, CudaLexer(stripnl=False, ensurenl=False))


@lru_cache(maxsize=256)
def diff(old: str, new: str) -> Markup:
    """Return a unified diff from `old` to `new`; empty if the texts are equal.

    Unlike difflib.unified_diff, it handles lines that occur often, which are common in generated code.
    """
    before, after = old.splitlines(), new.splitlines()
    lines = []
    for hunk in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(3):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = hunk[0], hunk[-1]
        lines.append(f"@@ -{i1 + 1},{i2 - i1} +{j1 + 1},{j2 - j1} @@")
        for change, i, i_end, j, j_end in hunk:
            if change == "equal":
                lines += [f" {line}" for line in before[i:i_end]]
            else:
                lines += [f"-{line}" for line in before[i:i_end]] + [f"+{line}" for line in after[j:j_end]]
    return _coloured("\n".join(lines), DiffLexer(stripnl=False, ensurenl=False))


def _coloured(text: str, lexer: Lexer) -> Markup:
    marked = Markup(format(_families(lexer.get_tokens(text)), HtmlFormatter(nowrap=True)))
    return marked if text.endswith("\n") else marked.removesuffix("\n")  # added by the formatter


def _families(tokens: Iterable[tuple[_TokenType, str]]) -> Iterator[tuple[_TokenType, str]]:
    """Merge token kinds with the same style, and names and punctuation into plain text, which reduces the size to a
    fifth.
    """
    for family, merged in groupby(tokens, key=lambda token: _family(token[0])):
        yield family, "".join(text for _, text in merged)


@cache
def _family(kind: _TokenType) -> _TokenType:
    above = kind.split()  # the kind itself comes last
    return next((family for family in (*_CODE, *_DIFF) if family in above), Text)
