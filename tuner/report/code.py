"""CUDA C++ and unified diffs as coloured HTML; reports/style.css has the colours of the classes."""

import difflib
from collections.abc import Iterable, Iterator

from markupsafe import Markup
from pygments import highlight
from pygments.filter import Filter
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, DiffLexer
from pygments.token import Comment, Generic, Keyword, Name, Number, String, Text, _TokenType

_COLOURED = (Comment.Preproc, Comment.PreprocFile, Comment, Keyword, Name.Builtin, Number, String)
_COLOURED += (Generic.Inserted, Generic.Deleted, Generic.Subheading)


class _Families(Filter):
    """Kinds that the page does not tell apart become one, and names and signs plain text: a fifth of the bytes."""

    def filter(self, _: Lexer, stream: Iterable[tuple[_TokenType, str]]) -> Iterator[tuple[_TokenType, str]]:
        for kind, text in stream:
            yield next((family for family in _COLOURED if kind in family), Text), text


def cuda(text: str) -> Markup:
    return _coloured(text, CudaLexer(stripnl=False, ensurenl=False))


def diff(old: str, new: str) -> Markup:
    """A unified diff from `old` to `new`; empty where the texts are equal.

    Unlike difflib.unified_diff it does not give up on lines that occur often, of which generated code is full.
    """
    before, after = old.splitlines(), new.splitlines()
    found = []
    for hunk in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(3):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = hunk[0], hunk[-1]
        found.append(f"@@ -{i1 + 1},{i2 - i1} +{j1 + 1},{j2 - j1} @@")
        for change, i, i_end, j, j_end in hunk:
            if change == "equal":
                found += [f" {line}" for line in before[i:i_end]]
            else:
                found += [f"-{line}" for line in before[i:i_end]] + [f"+{line}" for line in after[j:j_end]]
    return _coloured("\n".join(found), DiffLexer(stripnl=False, ensurenl=False))


def _coloured(text: str, lexer: Lexer) -> Markup:
    lexer.add_filter(_Families())
    lexer.add_filter("tokenmerge")
    marked = Markup(highlight(text, lexer, HtmlFormatter(nowrap=True)))
    return marked if text.endswith("\n") else marked.removesuffix("\n")  # which the formatter adds
