"""Type stubs of `tuner.dispatcher` and `tuner.jax`, written from the signatures of the operators' calls.

    python -m tuner.dispatcher.stubs                  # write the stubs of the operators that come with this package
    python -m tuner.dispatcher.stubs --out FOLDER     # a stub package `tuner-stubs` for operators of your own as well

With them a type checker reports a misspelt operator or argument.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, formatannotation, signature
from pathlib import Path
from typing import Any

from tuner import operators
from tuner.spec.operator import Operator

_PACKAGE = Path(__file__).parents[1]
_HEADER = '"""Written by `python -m tuner.dispatcher.stubs` from the operators: do not edit."""\n'
_TYPES = "from typing import Any, TypeVar\n"
_ARRAY = 'A = TypeVar("A")  # an array: NumPy, CuPy, torch, or anything with DLPack'
_DISPATCHER = """\
from tuner.dispatcher.calls import Dispatcher as Dispatcher
from tuner.dispatcher.config_choice import Explanation as Explanation
from tuner.dispatcher.functions import explain as explain
from tuner.dispatcher.functions import misses as misses
from tuner.dispatcher.functions import reload as reload
from tuner.dispatcher.functions import warmup as warmup
from tuner.dispatcher.untuned_warnings import Miss as Miss
from tuner.dispatcher.untuned_warnings import UntunedWarning as UntunedWarning
"""
_LINE = 120


def dispatcher_stub(names: Sequence[str]) -> str:
    """Return the text of `tuner/dispatcher/__init__.pyi`: one function per operator, which returns its first argument's
    type.
    """
    device = Parameter("device", Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
    functions = (_function(operators.load(name), "A", "A", (device,)) for name in names)
    return "\n".join((_HEADER, _TYPES, _DISPATCHER, _ARRAY, "", *functions, ""))


def jax_stub(names: Sequence[str]) -> str:
    """Return the text of `tuner/jax/__init__.pyi`: the same functions on `jax.Array`s and NumPy arrays."""
    functions = (_function(operators.load(name), "jax.typing.ArrayLike", "jax.Array", ()) for name in names)
    imports = "from typing import Any\n\nimport jax\nimport jax.typing\n\n"
    imports += "from tuner.jax.attention import FallbackWarning as FallbackWarning\n"
    imports += "from tuner.jax.attention import dot_product_attention as dot_product_attention\n"
    return "\n".join((_HEADER, imports, *functions, ""))


def _function(operator: Operator[Any], first: str, array: str, added: Sequence[Parameter]) -> str:
    parameters = [*signature(operator.call).parameters.values(), *added]
    parameters.sort(key=lambda parameter: parameter.kind)
    texts = [*_parameters(parameters, first)]
    outputs = len(operator.outputs)
    result = array if outputs == 1 else f"tuple[{', '.join([array] * outputs)}]"
    line = f"def {operator.name}({', '.join(texts)}) -> {result}: ..."
    if len(line) <= _LINE:
        return line
    return "\n".join((f"def {operator.name}(", *(f"    {text}," for text in texts), f") -> {result}: ..."))


def _parameters(parameters: Sequence[Parameter], first: str) -> Iterator[str]:
    keyword_only = False
    for index, parameter in enumerate(parameters):
        if parameter.kind is Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        annotation = first if index == 0 else _annotation(parameter)
        default = "" if parameter.default is Parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        yield f"{parameter.name}: {annotation}{default}"


def _annotation(parameter: Parameter) -> str:
    declared = getattr(parameter.annotation, "__origin__", parameter.annotation)  # for Annotated[Any, …]: Any
    return "Any" if declared is Parameter.empty else formatannotation(declared).replace("typing.", "")


def write(names: Sequence[str], package: Path) -> tuple[Path, ...]:
    """Write both stubs below a package's folder; return their paths."""
    texts: dict[str, Callable[[Sequence[str]], str]] = {
        "dispatcher/__init__.pyi": dispatcher_stub,
        "jax/__init__.pyi": jax_stub,
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text(names), encoding="utf-8")
    return tuple(package / name for name in texts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tuner.dispatcher.stubs", description="Write type stubs.")
    parser.add_argument("--out", type=Path, help="the folder to write a stub package into (default: this package)")
    options = parser.parse_args()
    package = _PACKAGE
    if options.out:
        package = options.out / "tuner-stubs"
        package.mkdir(parents=True, exist_ok=True)
        (package / "py.typed").write_text("partial\n")  # the installed package provides everything else
    for path in write(operators.names(), package):
        print(path)


if __name__ == "__main__":
    main()
