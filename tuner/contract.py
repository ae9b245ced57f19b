"""A function of an operator's folder that is held to its promise: where it fails or returns something else, a
TemplateError names the file, the function and the line."""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from traceback import extract_tb
from typing import Any

from tuner.errors import TemplateError, TunerError
from tuner.operator import left_out

Complaints = Iterator[str]  # what is wrong with a value, the first first


def held(
    function: Callable[..., Any], place: str, folder: Path, called: str, check: Callable[..., Complaints]
) -> Callable[..., Any]:
    """`function` of the file `place`, called as `called`; `check` gets what it returned and its arguments."""
    if function is left_out:
        return function

    @wraps(function)
    def run(*args: Any) -> Any:
        try:
            found = function(*args)
        except TunerError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}{line_of(error, folder.__eq__)}"
            raise TemplateError(f"{place}: {called} failed: {reason}") from error
        for wrong in check(found, *args):
            raise TemplateError(f"{place}: {called} {wrong}")
        return found

    return run


def line_of(error: Exception, own: Callable[[Path], bool]) -> str:
    """Where in files of the operators' `own` folders an error came from; empty where it came from elsewhere."""
    frames = [each for each in extract_tb(error.__traceback__) if own(Path(each.filename).parent)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def of_kind(found: Any, kind: Any, wanted: str) -> Complaints:
    """Says what to return instead of a value of another kind."""
    if not isinstance(found, kind):
        yield f"returned {shown(found)}: return {wanted}"


def shown(found: Any) -> str:
    """A value in few words."""
    return f"{found!r:.60}" if found is None or isinstance(found, bool | int | str) else f"a {type(found).__name__}"


def is_frozen(kind: Any) -> bool:
    """Whether a class is a dataclass whose values are constants."""
    return is_dataclass(kind) and getattr(kind, "__dataclass_params__", None).frozen  # type: ignore[union-attr]
