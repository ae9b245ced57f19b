"""Checks on the functions of an operator's folder: a TemplateError names the file, function and line of a mistake."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from itertools import count
from math import prod
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from tuner.errors import TemplateError, TunerError
from tuner.spec.argument import KEYWORDS, Argument, Role
from tuner.spec.block import disagreements
from tuner.spec.operator import Cost, Gradient, Implementation, Operator, Work, not_defined
from tuner.spec.plan import Launch, Plan
from tuner.spec.problem import sizes, statics
from tuner.spec.space import Space
from tuner.spec.tolerance import Tolerance

Complaints = Iterator[str]  # descriptions of what is wrong with a value
_COLUMNS = range(0, 513, 32)  # columns of tensor memory: sums of allocations, each a power of two


def checked(
    function: Callable[..., Any], path: str, folder: Path, called: str, check: Callable[..., Complaints]
) -> Callable[..., Any]:
    """Wrap `function` of the file `place`, called as `called`; `check` receives its result and its arguments."""
    if function is not_defined:
        return function

    @wraps(function)
    def run(*args: Any) -> Any:
        try:
            returned = function(*args)
        except TunerError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}{line_of(error, [folder])}"
            raise TemplateError(f"{path}: {called} failed: {reason}") from error
        for wrong in check(returned, *args):
            raise TemplateError(f"{path}: {called} {wrong}")
        return returned

    return run


def line_of(error: Exception, operators: Sequence[Path]) -> str:
    """Return the location of an error in these operators' folders; empty if it occurred elsewhere."""
    for frame in reversed(extract_tb(error.__traceback__)):
        for folder in operators:
            if (path := Path(frame.filename)).is_relative_to(folder):
                return f" ({path.relative_to(folder).as_posix()}, line {frame.lineno})"
    return ""


def expect_type(returned: Any, kind: Any, wanted: str) -> Complaints:
    """Yield the expected type if the value has another one."""
    if not isinstance(returned, kind):
        yield f"returned {brief(returned)}: return {wanted}"


def brief(returned: Any) -> str:
    """Return a short description of a value."""
    return (
        f"{returned!r:.60}"
        if returned is None or isinstance(returned, bool | int | str)
        else f"a {type(returned).__name__}"
    )


def is_frozen(kind: Any) -> bool:
    """Return whether a class is a frozen dataclass."""
    return is_dataclass(kind) and getattr(kind, "__dataclass_params__", None).frozen  # type: ignore[union-attr]


def validated(operator: Operator[Any]) -> Operator[Any]:
    """Return the operator. Raises TemplateError if its Problem, arguments or kinds of inputs are inconsistent."""
    for wrong in _declared(operator):
        raise TemplateError(f"{operator.name}/operator.py: {wrong}")
    return operator


def checked_operator(operator: Operator[Any]) -> Operator[Any]:
    """Return the operator with functions that check their results."""
    path = f"{operator.name}/operator.py"

    def hold(name: str, called: str, check: Callable[..., Complaints]) -> Callable[..., Any]:
        return checked(getattr(operator, name), path, operator.folder, f"{name}({called})", check)

    return replace(
        operator,
        inputs=hold("inputs", "problem, rng, kind", lambda returned, problem, *_: _inputs(operator, problem, returned)),
        reference=hold(
            "reference", "problem, arrays", lambda returned, problem, _: _exact(operator, problem, returned)
        ),
        rounded=hold("rounded", "problem, arrays", lambda returned, problem, _: _results(operator, problem, returned)),
        tolerance=hold("tolerance", "problem", lambda returned, _: _tolerances(operator, returned)),
        cost=hold("cost", "problem", lambda returned, _: _cost(returned)),
        tails=hold("tails", "problem", _tails),
    )


def _declared(operator: Operator[Any]) -> Complaints:
    yield from _problem(operator.problem)
    for argument in operator.arguments:
        yield from _argument(operator, argument)
    if not operator.written:
        yield "no argument has Role.OUTPUT or Role.UPDATED: say where the kernel leaves its results"
    if not isinstance(operator.gradient, Gradient | None):
        yield f"gradient is {brief(operator.gradient)}: give Gradient(…), or None"
    kinds = operator.input_kinds
    if not isinstance(kinds, tuple) or not kinds:
        yield f'input_kinds is {kinds!r}: give a tuple of names, such as ("normal",)'


def _problem(problem: Any) -> Complaints:
    if not is_frozen(problem):
        yield "Problem must be a frozen dataclass: @dataclass(frozen=True, slots=True)"
        return
    for field in fields(problem):
        if field.metadata.get("kind") not in ("static", "extent"):
            yield f"Problem.{field.name} must be static(…), which selects code, or extent(…), a size at run time"


def _argument(operator: Operator[Any], argument: Argument) -> Complaints:
    if argument.name in KEYWORDS:
        yield f"argument {argument.name!r} is a C++ keyword, which cannot name a kernel parameter"
    names = {field.name: None for field in fields(operator.problem)}
    readable = {*names, *(name for name in dir(operator.problem) if not name.startswith("_"))}
    for dim in argument.dims:
        if dim not in readable:
            yield f"argument {argument.name} has a dim {dim!r}, which is not a field of Problem ({', '.join(names)})"
    if argument.constant and (argument.role is not Role.INPUT or argument.strided):
        yield f"argument {argument.name} is a __constant__ symbol: that is a dense Role.INPUT"
    supplied = [other.name for other in operator.arguments if other.supplied]
    for dim, value in argument.without.items():
        if argument.role is not Role.OUTPUT or (isinstance(value, str) and value not in supplied):
            yield (
                f"argument {argument.name} has without={{{dim!r}: {value!r}}}: only an output holds something without "
                f"a dim, a number or what an argument holds ({', '.join(supplied)})"
            )
    if argument.optional and argument.optional not in readable:
        yield f"argument {argument.name} is optional={argument.optional!r}, which is not a field of Problem"
    if isinstance(argument.dtype, str) and argument.dtype not in readable:
        yield (
            f"argument {argument.name} has the dtype of {argument.dtype!r}, which is not a field of Problem "
            f"({', '.join(names)}): name one, or give a DType"
        )


def _inputs(operator: Operator[Any], problem: Any, returned: Any) -> Complaints:
    if not isinstance(returned, Mapping):
        yield f"returned {brief(returned)}: return a dict of arrays by argument"
        return
    inputs = {argument.name: argument for argument in operator.arguments if argument.role is not Role.OUTPUT}
    for name in returned.keys() - inputs.keys():
        yield f"returned {name!r}, which is not an argument of the call ({', '.join(inputs)})"
    for argument in inputs.values():
        if argument.role is Role.SCALAR:
            if argument.name not in returned and argument.required(problem):
                yield f"left out {argument.name}: return it, make it a field of Problem, or give its Argument a default"
        elif argument.name in returned:
            yield from _tensor(argument, problem, returned[argument.name])
        elif 0 not in argument.shape(problem):
            yield f"left out {argument.name}: return an array for every tensor of the call"


def _tensor(argument: Argument, problem: Any, returned: Any) -> Complaints:
    dtype, shape = argument.dtype_of(problem).numpy, argument.shape(problem)
    is_array = isinstance(returned, np.ndarray)
    if not is_array or returned.dtype != dtype or returned.shape != shape:
        actual = f"{returned.dtype}{list(returned.shape)}" if is_array else brief(returned)
        wanted = f"{dtype}{list(shape)}"
        cast = f": .astype({_spelled(argument)})" if is_array and returned.dtype != dtype else ""
        yield f"returned {argument.name} as {actual}, the problem says {wanted}{cast}"


def _spelled(argument: Argument) -> str:
    """Return the expression for an argument's NumPy dtype."""
    return f"problem.{argument.dtype}.numpy" if isinstance(argument.dtype, str) else f"{argument.dtype}.numpy"


def _results(operator: Operator[Any], problem: Any, returned: Any) -> Complaints:
    names = [argument.name for argument in operator.written]
    if not isinstance(returned, Mapping) or set(names) - returned.keys():
        what = brief(returned) if not isinstance(returned, Mapping) else f"{', '.join(returned) or 'nothing'}"
        yield f"returned {what}: return a dict with {', '.join(names)}"
        return
    for argument in operator.written:
        shape, expected = list(np.shape(returned[argument.name])), list(argument.shape(problem))
        if shape != expected:
            yield f"returned {argument.name} of shape {shape}, not {expected}"


def _exact(operator: Operator[Any], problem: Any, returned: Any) -> Complaints:
    yield from _results(operator, problem, returned)
    for argument in operator.written:
        array = returned[argument.name]
        array = array.compressed() if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
        if array.dtype in (np.float16, np.float32):
            yield f"returned {argument.name} in {array.dtype}: compute in float64, which kernels are judged by"
        if array.dtype.kind == "f" and np.isnan(array).any():
            yield f"returned NaN in {argument.name}: no kernel can be judged by that; do the inputs make sense?"


def _tolerances(operator: Operator[Any], returned: Any) -> Complaints:
    for argument in operator.written:
        if not isinstance(returned, Mapping) or not isinstance(returned.get(argument.name), Tolerance):
            yield f"says nothing about {argument.name}: return {{{argument.name!r}: Tolerance(…)}}"


def _cost(returned: Any) -> Complaints:
    yield from expect_type(returned, Cost, "a Cost")
    if not returned.bytes > 0 or returned.flops < 0 or not returned.items > 0:
        yield f"returned {returned}: bytes and items must be positive, and flops not negative"


def _tails(returned: Any, problem: Any) -> Complaints:
    if not isinstance(returned, tuple) or not returned or not all(isinstance(tail, type(problem)) for tail in returned):
        yield f"returned {brief(returned) if returned else 'nothing'}: return a tuple of at least one Problem"
        return
    for tail in returned:
        for name in set(statics(problem)) - set(sizes(problem)):
            if getattr(tail, name) != getattr(problem, name):
                yield (
                    f"changed {name} from {getattr(problem, name)} to {getattr(tail, name)}: it selects the code that "
                    f"is checked; change only sizes ({', '.join(sizes(problem)) or 'it has none'}), which are "
                    "extent(…), or static(…, size=True) where they are macros"
                )


def checked_implementation(
    operator: Operator[Any], implementation: Implementation[Any, Any]
) -> Implementation[Any, Any]:
    """Return the implementation with functions that check their results. Raises TemplateError if Config is not
    frozen.
    """
    path, config = f"{operator.name}/{implementation.name}/implementation.py", implementation.config
    if not is_frozen(config):
        raise TemplateError(f"{path}: Config must be a frozen dataclass: @dataclass(frozen=True, slots=True)")

    if implementation.checked_on not in ("emulator", "ptx"):
        raise TemplateError(f"{path}: checked_on is {implementation.checked_on!r}: say 'emulator' or 'ptx'")

    def hold(name: str, called: str, check: Callable[..., Complaints]) -> Callable[..., Any]:
        return checked(getattr(implementation, name), path, operator.folder, f"{name}({called})", check)

    def plans(returned: Any, problem: Any, config: Any) -> Complaints:
        yield from _plan(returned)
        yield from disagreements(implementation.blocks(problem), returned, config)

    plan = hold("plan", "problem, config", plans)
    calls = count()

    def works(returned: Any, problem: Any, config: Any, _: Any) -> Complaints:
        yield from _works(returned)
        if not next(calls):  # only the first call is checked: a space may have millions of configs to rank
            yield from _one_a_launch(returned, plan(problem, config))

    return replace(
        implementation,
        refusal=hold(
            "refusal",
            "problem, arch",
            lambda returned, *_: expect_type(returned, (str, type(None)), "None or a reason"),
        ),
        space=hold("space", "problem, arch", lambda returned, *_: _space(returned, config)),
        plan=plan,
        default=hold("default", "problem, arch", lambda returned, *_: expect_type(returned, config, "a Config")),
        work=hold("work", "problem, config, gpu", works),
    )


def _space(returned: Any, config: Any) -> Complaints:
    yield from expect_type(returned, Space, "a Space")
    wanted = [field.name for field in fields(config)]
    if set(wanted) != set(returned.choices):
        yield f"has choices for {', '.join(returned.choices)}: give them for each field of Config ({', '.join(wanted)})"
    for name, values in returned.choices.items():
        if isinstance(values, str) or not len(values):
            yield f"has the choices {values!r} for {name}: give a tuple of at least one value"


def _plan(returned: Any) -> Complaints:
    yield from expect_type(returned, Plan, "a Plan")
    launches = returned.launches
    if not isinstance(launches, tuple) or not launches or not all(isinstance(launch, Launch) for launch in launches):
        yield f"has launches that are {brief(launches)}: give a tuple of Launch, (Launch(…),) for one"
        return
    for launch in launches:
        grid = launch.grid
        if not isinstance(grid, tuple) or len(grid) != 3 or not all(_whole(size) for size in grid):
            yield f"launches {launch.entry} with the grid {grid!r}: give three whole numbers (blocks along x, y, z)"
        elif not _threads(launch.threads) or not _whole(launch.smem_bytes) or launch.smem_bytes < 0:
            yield (
                f"launches {launch.entry} with {launch.threads!r} threads per block and {launch.smem_bytes!r} bytes of "
                "shared memory: give whole numbers, 1 thread or more, or a tuple of up to three"
            )
        elif not _sampled(launch.sample, prod(grid)):
            yield f"launches {launch.entry} with the sample {launch.sample!r}: give block indices below {prod(grid)}"
        elif launch.tensor_columns not in _COLUMNS:
            yield (
                f"launches {launch.entry} with {launch.tensor_columns!r} columns of tensor memory: give what a block "
                "allocates, 0 for none, else a multiple of 32 up to 512"
            )


def _sampled(sample: Any, blocks: int) -> bool:
    return sample is None or (bool(sample) and all(_whole(block) and 0 <= block < blocks for block in sample))


def _threads(value: Any) -> bool:
    sizes = value if isinstance(value, tuple) and 1 <= len(value) <= 3 else (value,)
    return all(_whole(size) and size >= 1 for size in sizes)


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def _works(returned: Any) -> Complaints:
    if not isinstance(returned, tuple) or not all(isinstance(work, Work) for work in returned):
        yield f"returned {brief(returned)}: return a tuple with a Work for each launch, (Work(…),) for one"


def _one_a_launch(returned: tuple[Work, ...], plan: Plan) -> Complaints:
    if len(returned) != len(plan.launches):
        yield f"returned {len(returned)} Work: return one for each of the {len(plan.launches)} launches of the plan"
