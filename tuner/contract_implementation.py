"""What the functions of an implementation return."""

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import count
from typing import Any

import numpy as np

from tuner.contract import Complaints, held, is_frozen, of_kind, shown
from tuner.errors import TemplateError
from tuner.operator import Implementation, Operator, Work
from tuner.plan import Launch, Plan
from tuner.space import Space

_COLUMNS = range(0, 513, 32)  # of tensor memory: sums of powers of two, of which each is an allocation


def held_implementation(operator: Operator[Any], implementation: Implementation[Any, Any]) -> Implementation[Any, Any]:
    """The implementation with functions that check what they return. Raises TemplateError if Config is not frozen."""
    place, config = f"{operator.name}/{implementation.name}.py", implementation.config
    if not is_frozen(config):
        raise TemplateError(f"{place}: Config must be a frozen dataclass: @dataclass(frozen=True, slots=True)")

    if implementation.checked_on not in ("emulator", "ptx"):
        raise TemplateError(f"{place}: checked_on is {implementation.checked_on!r}: say 'emulator' or 'ptx'")

    def hold(name: str, called: str, check: Callable[..., Complaints]) -> Callable[..., Any]:
        return held(getattr(implementation, name), place, operator.folder, f"{name}({called})", check)

    plan = hold("plan", "problem, config", lambda found, *_: _plan(found))
    calls = count()

    def works(found: Any, problem: Any, config: Any, _: Any) -> Complaints:
        yield from _works(found)
        if not next(calls):  # the first stands for all: a space may have millions of configs to rank
            yield from _one_a_launch(found, plan(problem, config))

    return replace(
        implementation,
        refusal=hold(
            "refusal", "problem, arch", lambda found, *_: of_kind(found, (str, type(None)), "None or a reason")
        ),
        space=hold("space", "problem, arch", lambda found, *_: _space(found, config)),
        plan=plan,
        default=hold("default", "problem, arch", lambda found, *_: of_kind(found, config, "a Config")),
        work=hold("work", "problem, config, gpu", works),
    )


def _space(found: Any, config: Any) -> Complaints:
    yield from of_kind(found, Space, "a Space")
    wanted = [each.name for each in fields(config)]
    if set(wanted) != set(found.choices):
        yield f"has choices for {', '.join(found.choices)}: give them for each field of Config ({', '.join(wanted)})"
    for name, values in found.choices.items():
        if isinstance(values, str) or not len(values):
            yield f"has the choices {values!r} for {name}: give a tuple of at least one value"


def _plan(found: Any) -> Complaints:
    yield from of_kind(found, Plan, "a Plan")
    launches = found.launches
    if not isinstance(launches, tuple) or not launches or not all(isinstance(each, Launch) for each in launches):
        yield f"has launches that are {shown(launches)}: give a tuple of Launch, (Launch(…),) for one"
        return
    for each in launches:
        grid = each.grid
        if not isinstance(grid, tuple) or len(grid) != 3 or not all(_whole(size) for size in grid):
            yield f"launches {each.entry} with the grid {grid!r}: give three whole numbers (blocks along x, y, z)"
        elif not _whole(each.threads) or each.threads < 1 or not _whole(each.smem_bytes) or each.smem_bytes < 0:
            yield (
                f"launches {each.entry} with {each.threads!r} threads a block and {each.smem_bytes!r} bytes of shared "
                "memory: give whole numbers, 1 thread or more"
            )
        elif each.tensor_columns not in _COLUMNS:
            yield (
                f"launches {each.entry} with {each.tensor_columns!r} columns of tensor memory: give what a block "
                "allocates, 0 for none, else a multiple of 32 up to 512"
            )


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def _works(found: Any) -> Complaints:
    if not isinstance(found, tuple) or not all(isinstance(each, Work) for each in found):
        yield f"returned {shown(found)}: return a tuple with a Work for each launch, (Work(…),) for one"


def _one_a_launch(found: tuple[Work, ...], plan: Plan) -> Complaints:
    if len(found) != len(plan.launches):
        yield f"returned {len(found)} Work: return one for each of the {len(plan.launches)} launches of the plan"
