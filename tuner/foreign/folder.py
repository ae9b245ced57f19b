"""Writes a call as an operator's folder, with files as one would write them by hand."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tuner.base.assets import PRIMITIVES, TEMPLATE
from tuner.compiler.source import includes
from tuner.errors import UsageError
from tuner.foreign.arithmetic import of_columns, of_config
from tuner.foreign.call import Argument, Call, Size
from tuner.spec.argument import Role
from tuner.spec.dtype import DType
from tuner.spec.problem import Array
from tuner.spec.space import Value
from tuner.spec.tolerance import rounding_tolerance

IMPLEMENTATION = "imported"
_MOST_BYTES = 2 << 30  # size of the arguments in a folder
_UNROLL = re.compile(r"#\s*pragma\s+unroll\s+(loop_unroll_factor\w*)")
_SMALL = 1 << 15  # threads of a launch whose blocks are all checked


@dataclass(frozen=True)
class Known:
    """The known elements of a written argument: `values` at the indices `at`, or everywhere."""

    values: Array
    at: Array | None = None  # indices in a flat array


@dataclass(frozen=True)
class Learnt:
    """Facts that a call does not state: written arguments, correct results, and parameters that change the result."""

    roles: Mapping[str, Role]
    known: Mapping[str, Known] = field(default_factory=dict)
    fixed: Mapping[str, Value] = field(default_factory=dict)  # parameters that select what is computed
    spread: int = 0  # neighbouring blocks of each sampled one that are also run, along each axis


def write(name: str, folder: Path, call: Call, learnt: Learnt) -> None:
    """Write the operator's folder atomically. Raises UsageError if it cannot be written."""
    if sum(argument.value.nbytes for argument in call.arguments) > _MOST_BYTES:
        raise UsageError(f"{name}: the arguments have more than {_MOST_BYTES >> 30} GiB: give a smaller problem")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as temporary:
        draft = Path(temporary) / name
        (draft / IMPLEMENTATION).mkdir(parents=True)
        _write_values(draft, call, learnt)
        files = {
            # Without it, a script in the same folder would be imported instead.
            "__init__.py": f'"""{name}, imported from {call.origin}."""\n',
            "operator.py": _operator(name, call, learnt),
            f"{IMPLEMENTATION}/implementation.py": _implementation(call, learnt),
            f"{IMPLEMENTATION}/{TEMPLATE}": _template(call),
            f"{IMPLEMENTATION}/source.cu": _UNROLL.sub(lambda match: _unrolled(match, call), call.source),
            "README.md": _readme(name, call, learnt),
        }
        for path, text in (*files.items(), *headers(call)):
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        draft.rename(folder)


def _unrolled(match: re.Match[str], call: Call) -> str:
    """Return an unroll pragma that a parameter controls as a macro; macros that the source defines stay."""
    return f"UNROLL_{match[1]}" if match[1] in call.choices else match[0]


def _write_values(folder: Path, call: Call, learnt: Learnt) -> None:
    for argument in call.arguments:
        if _role(argument, learnt) in (Role.INPUT, Role.UPDATED):
            np.save(folder / f"{argument.name}.npy", argument.value)
    if call.allowed is not None:
        np.save(folder / IMPLEMENTATION / "allowed.npy", call.allowed)
    for name, right in learnt.known.items():
        file = folder / f"{name}.right.npz"
        if right.at is None:
            np.savez(file, values=right.values)
        else:
            np.savez(file, values=right.values, at=right.at)


def _role(argument: Argument, learnt: Learnt) -> Role:
    return Role.SCALAR if argument.scalar else learnt.roles.get(argument.name, Role.INPUT)


def headers(call: Call) -> list[tuple[str, str]]:
    """Return (path, text) of the local headers that the source includes."""
    texts: dict[str, str] = {}
    pending = [include.name for include in includes(call.source) if include.quoted]
    while pending:
        name = pending.pop()
        path = next((folder / name for folder in call.include if (folder / name).is_file()), None)
        if path is None or name in texts:
            continue
        if any((folder / name).exists() for folder in (PRIMITIVES, PRIMITIVES / "cuda")):
            raise UsageError(f'#include "{name}": a header of this program has this name: rename yours')
        texts[name] = path.read_text(encoding="utf-8", errors="replace")
        pending += [include.name for include in includes(texts[name]) if include.quoted]
    return list(texts.items())


def _operator(name: str, call: Call, learnt: Learnt) -> str:
    size = _spelled_size(call)
    arrays = [argument for argument in call.arguments if not argument.scalar]
    sizes = "\n".join(f"    {array.name}_size: ClassVar[int] = {array.value.size}" for array in arrays)
    drawn = [array.name for array in arrays if _role(array, learnt) in (Role.INPUT, Role.UPDATED)]
    dtypes = {array.name: array.dtype for array in arrays if _role(array, learnt) in (Role.OUTPUT, Role.UPDATED)}
    tolerances = ", ".join(
        f'"{output}": Tolerance({_tolerance(call, learnt, output, dtype)!r})' for output, dtype in dtypes.items()
    )
    return f'''"""{name}: the kernel {call.kernel} as {call.origin} calls it. Its arguments lie beside this file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Argument, Array, Arrays, DType, Operator, Role, Tolerance, static

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Problem:
    """What was called, of which the arguments are known. For another size, import another call."""

    problem_size: str = static("of the call", default="{size}")
{sizes}

    def __post_init__(self) -> None:
        if self.problem_size != "{size}":
            raise UsageError(f"problem_size {{self.problem_size}}: {name} has the arguments of {size} only")


ARGUMENTS = (  # in the order of the kernel's parameters
{"".join(_argument(argument, _role(argument, learnt)) for argument in call.arguments)})


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:  # noqa: ARG001
    """What the call gave."""
    return {{name: np.load(HERE / f"{{name}}.npy", mmap_mode="r") for name in {drawn!r}}}


def right(name: str, size: int) -> Array:
    """What is right, masked where nobody knows."""
    found = np.load(HERE / f"{{name}}.right.npz")
    if "at" not in found:
        return found["values"].astype(np.float64)
    known = np.ma.masked_array(np.full(size, np.nan), True)
    known[found["at"]] = found["values"]
    return known


def reference(problem: Problem, arrays: Arrays) -> Arrays:  # noqa: ARG001
    """{"What the call expects." if call.answers else "What the kernel itself wrote where nothing was tuned."}"""
    return {{name: right(name, getattr(problem, f"{{name}}_size")) for name in {list(dtypes)!r}}}


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:  # noqa: ARG001
    return {{{tolerances}}}


OPERATOR = Operator(
    name="{name}",
    summary="{call.kernel.replace('"', "'")} of {call.origin}",
    problem=Problem,
    arguments=ARGUMENTS,
    reference=reference,
    inputs=inputs,
    tolerance=tolerance,
)
'''


def _argument(argument: Argument, role: Role) -> str:
    dtype = f"DType.{argument.dtype.name}"
    if argument.scalar:
        value = argument.value.item()
        return f'    Argument("{argument.name}", {dtype}, role=Role.SCALAR, default=lambda _: {value!r}),\n'
    more = ", constant=True" if argument.constant else "" if role is Role.INPUT else f", Role.{role.name}"
    return f'    Argument("{argument.name}", {dtype}, ("{argument.name}_size",){more}),\n'


def _tolerance(call: Call, learnt: Learnt, name: str, dtype: DType) -> float:
    """Return the operator's default tolerance, or that of the answer if it is larger."""
    usual = rounding_tolerance(dtype).absolute
    if name not in call.answers or not usual:
        return usual
    values = np.asarray(learnt.known[name].values, np.float64) if name in learnt.known else np.ones(1)
    scale = float(np.sqrt(np.mean(values * values)))
    return max(usual, call.atol / scale) if scale else usual


def _spelled_size(call: Call) -> str:
    sizes = list(call.size)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return "x".join(re.sub(r"\W+", "_", str(size)) for size in sizes)


def _implementation(call: Call, learnt: Learnt) -> str:
    choices = {name: (learnt.fixed[name],) if name in learnt.fixed else values for name, values in call.choices.items()}
    kinds = "\n".join(f"    {name}: {type(values[0]).__name__}" for name, values in choices.items()) or "    pass"
    rows = "\n".join(f'        "{name}": {values!r},' for name, values in choices.items())
    rules = "\n".join(
        f"        Constraint({json.dumps(text, ensure_ascii=False)}, lambda c: {of_columns(text, choices)}),"
        for text in call.restrictions
    )
    table = ""
    if call.allowed is not None:
        rules += '\n        Constraint("what functions of the call say", allowed),'
        table = _ALLOWED.format(choices=repr(dict(call.choices)))
    threads = [of_config(axis, choices) if axis in choices else "1" for axis in call.block]
    columns = " * ".join(f"c.{axis}" for axis in call.block if axis in choices) or "np.asarray(1)"
    divisors = [
        " * ".join(f"int({of_config(factor, choices)})" for factor in of_axis) or "1" for of_axis in call.divisors
    ]
    sizes = [_sized(size, choices) for size in call.size]
    usual = ", ".join(f"{name}={value!r}" for name, value in {**call.usual, **learnt.fixed}.items())
    constants = _constants(call)
    return f'''"""{call.kernel} as it was, a macro for each parameter."""

from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Constraint, Implementation, Launch, Plan, Space

from ..operator import Problem

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Config:
{kinds}

{table}
def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001
    choices = {{
{rows}
    }}
    constraints = (
{rules}
        Constraint("a block has at most 1024 threads", lambda c: {columns} <= 1024),
    )
    return Space(Config, choices, constraints)


# Where blocks are looked at on the CPU, as shares of the problem along x, y and z: it would run all of them for hours.
PLACES = ((0.0, 0.0, 0.0), (0.5, 0.37, 0.61), (0.83, 0.12, 0.29), (1.0, 1.0, 1.0))
SPREAD = {learnt.spread}  # blocks beside each along each axis


def sample(size: Sizes, divisor: Sizes, grid: Sizes, block: Sizes) -> Sizes | None:
    """The blocks in which those places lie; None where all are few enough."""
    if prod(grid) * prod(block) <= {_SMALL}:
        return None
    found = set()
    for place in PLACES:
        along = zip(place, size, divisor, grid, strict=True)
        at = [min(int(share * (n - 1) // by), most - 1) for share, n, by, most in along]
        x, y, z = (range(max(i - SPREAD, 0), min(i + SPREAD + 1, most)) for i, most in zip(at, grid, strict=True))
        found |= {{i + grid[0] * (j + grid[1] * k) for i in x for j in y for k in z}}
    return tuple(sorted(found))


def plan(problem: Problem, config: Config) -> Plan:  # noqa: ARG001
    block = ({", ".join(threads)})
    size = ({", ".join(sizes)})
    divisor = ({", ".join(divisors)})
    grid = tuple(ceil(n / by) for n, by in zip(size, divisor, strict=True))
    looked_at = sample(size, divisor, grid, block)
    return Plan((Launch({_entry(call)}, grid, block, {_sized(call.smem, choices)}, sample=looked_at),), {constants})


def default(problem: Problem, arch: Arch) -> Config:
    """What the source itself defines, where that is allowed; else the first that is."""
    found = space(problem, arch)
    usual = replace(found[0], **dict({usual}))
    return usual if found.refusal(usual) is None else found[0]


IMPLEMENTATION = Implementation(
    name="{IMPLEMENTATION}",
    summary="{call.kernel.replace('"', "'")} as it was",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    checked_on="ptx",
)
'''


_ALLOWED = '''

ASKED = {choices}  # of all combinations, in this order
ALLOWED = np.load(Path(__file__).with_name("allowed.npy"))


def allowed(c: Any) -> Any:
    """What functions of the call said of each combination."""
    columns = {{name: np.asarray(getattr(c, name)) for name in ASKED}}
    values = {{name: np.array(ASKED[name]).reshape(-1, *[1] * column.ndim) for name, column in columns.items()}}
    return ALLOWED[tuple((values[name] == column).argmax(0) for name, column in columns.items())]

'''


def _sized(size: Size, choices: Mapping[str, object]) -> str:
    return str(size) if isinstance(size, int) else f"int({of_config(size, choices)})"


def _entry(call: Call) -> str:
    """Return the kernel's name, with the parameters of a template instance filled in."""
    filled = re.sub(
        r"[A-Za-z_]\w*", lambda word: f"{{config.{word[0]}}}" if word[0] in call.choices else word[0], call.kernel
    )
    return f'f"{filled}"' if filled != call.kernel else f'"{call.kernel}"'


def _constants(call: Call) -> str:
    named = [f'"grid_size_{axis}": grid[{i}]' for i, axis in enumerate("xyz")]
    return f"{{{', '.join(named)}}}" if _wants_grid(call) else "{}"


def _wants_grid(call: Call) -> bool:
    return bool(re.search(r"\bgrid_size_[xyz]\b", call.source))


def _template(call: Call) -> str:
    lines = ["// The macros that the source expects; the source itself is as it was."]
    if call.macros:
        lines.append("#define kernel_tuner 1")
        lines += [f"#define grid_size_{axis} {{{{ grid_size_{axis} }}}}" for axis in "xyz" if _wants_grid(call)]
        lines += [f"#define {name} 1" for name in call.block if name not in call.choices]
        lines += [_macro(name, values) for name, values in call.choices.items()]
    for name, value in call.defines.items():
        lines.append(_defined(name, value, call))
    for factor in sorted(set(_UNROLL.findall(call.source)) & call.choices.keys()):
        lines += [
            f"{{% if {factor} %}}",
            f'#define UNROLL_{factor} _Pragma("unroll {{{{ {factor} }}}}")',
            "{% else %}",
            f"#define UNROLL_{factor}",
            "{% endif %}",
        ]
    return "\n".join((*lines, "", f'#include "{IMPLEMENTATION}/source.cu"', ""))


def _macro(name: str, values: tuple[Value, ...]) -> str:
    spelled = f"{{{{ {name} | string }}}}" if isinstance(values[0], float) else f"{{{{ {name} }}}}"
    return f"#define {name} {spelled}"


def _defined(name: str, value: Value, call: Call) -> str:
    """Return a macro's value with the parameters filled in."""
    text = re.sub(
        r"[A-Za-z_]\w*", lambda word: f"{{{{ {word[0]} }}}}" if word[0] in call.choices else word[0], str(value)
    )
    return f"#define {name} {text}"


def _readme(name: str, call: Call, learnt: Learnt) -> str:
    written = ", ".join(f"`{output}`" for output in learnt.roles)
    right = "the answer that the call gave" if call.answers else "what the kernel wrote where nothing was tuned"
    fixed = [
        f"- `{parameter}` stays {value!r}: another value computes something else."
        for parameter, value in learnt.fixed.items()
    ]
    return "\n".join(
        (
            f"# {name}",
            "",
            f"`{call.kernel}`, imported from {call.origin}. It writes {written}, compared with {right}.",
            "On the CPU a few of its blocks run (`PLACES` in imported/implementation.py), on a device all of them.",
            *fixed,
            "",
            "```console",
            f"tuner verify {name}",
            f"tuner search {name} --gpu sm_90a",
            "```",
            "",
        )
    )
