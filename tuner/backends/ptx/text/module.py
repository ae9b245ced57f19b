"""Parsing of a PTX module into kernels, each with everything that it uses from the module."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.backends.ptx.text.calls import Function, inlined
from tuner.backends.ptx.text.parse import Body, Variable, read_body, variables
from tuner.backends.ptx.text.tables import ModuleTable, tables
from tuner.compiler.source import symbols


@dataclass(frozen=True)
class Entry(Body):
    """A kernel with all called functions inlined."""

    name: str
    parameters: tuple[Variable, ...]
    cluster: int = 0  # blocks per cluster; 0 if the launch decides
    tables: tuple[ModuleTable, ...] = ()  # the module variables that it uses
    target: str = ""  # arch from the module's `.target`


_FUNCTION = re.compile(
    r"\.(?P<kind>entry|func)\s*(?:\((?P<returns>[^()]*)\))?\s*(?P<name>[\w$]+)\s*"
    r"(?:\((?P<parameters>[^()]*)\))?(?P<about>[^{;]*)(?P<ends>[{;])"
)


def parse(text: str) -> dict[str, Entry]:
    """Return the entries of a module by name, or by C++ name if `symbol_lines` provides one.

    Raises UsageError for code that the interpreter cannot run, such as recursion.
    """
    called = {symbol: expression for expression, symbol in symbols(text).items()}
    # Directives without a terminating `;`.
    text = re.sub(r"//[^\n]*|^[ \t]*\.(loc|file)\b[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    outside, functions, heads, at = "", {}, [], 0
    while head := _FUNCTION.search(text, at):
        outside, at = outside + text[at : head.start()], head.end()
        body = None
        if head["ends"] == "{":
            body, at = read_body(text, at)
        function = Function(head["name"], _passed(head["parameters"]), _passed(head["returns"]), body)
        if head["kind"] == "entry":
            heads.append((function, head["about"]))
        else:
            functions[function.name] = function
    outside += text[at:]
    return {called.get(name.name, name.name): _entry(name, about, functions, outside) for name, about in heads}


def _passed(text: str | None) -> tuple[Variable, ...]:
    return tuple(variables((text or "").replace(",", ";") + ";", "param"))


def _entry(kernel: Function, about: str, functions: Mapping[str, Function], outside: str) -> Entry:
    assert kernel.body is not None, "an entry has a body"
    body = inlined(kernel.body, functions)
    cluster = re.search(r"\.reqnctapercluster\s+(\d+)", about)
    named = {word for instruction in body.code for word in re.findall(r"[\w$]+", instruction.text)}
    return Entry(
        code=body.code,
        labels=body.labels,
        registers=body.registers,
        shared=(*variables(outside, "shared"), *body.shared),
        local=body.local,
        name=kernel.name,
        parameters=kernel.parameters,
        cluster=int(cluster[1]) if cluster else 0,
        tables=tuple(tables(outside, named)),
        target=target[1] if (target := re.search(r"\.target\s+(\w+)", outside)) else "",
    )
