"""CUDA C++ and unified diffs as coloured HTML; reports/style.css has the colours of the classes."""

import difflib
from collections.abc import Iterable, Iterator

from markupsafe import Markup
from pygments import format
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, DiffLexer
from pygments.token import Comment, Generic, Keyword, Name, Number, String, Text, _TokenType

_CODE = (Comment.PreprocFile, Comment.Preproc, Comment, Keyword, Name.Builtin, Number, String)
_DIFF = (Generic.Inserted, Generic.Deleted, Generic.Subheading)


def cuda(text: str) -> Markup:
    return _coloured(text, CudaLexer(stripnl=False, ensurenl=False))


def diff(old: str, new: str) -> Markup:
    """A unified diff from `old` to `new`; empty where the texts are equal.

    Unlike difflib.unified_diff it does not give up on lines that occur often, of which generated code is full.
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
    return marked if text.endswith("\n") else marked.removesuffix("\n")  # which the formatter adds


def _families(tokens: Iterable[tuple[_TokenType, str]]) -> Iterator[tuple[_TokenType, str]]:
    """Kinds that the page does not tell apart become one, and names and signs plain text: a fifth of the bytes."""
    for kind, text in tokens:
        above = kind.split()  # the kind itself last
        yield next((family for family in (*_CODE, *_DIFF) if family in above), Text), text
