"""A kernel's parameter list and its scalar values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.errors import TemplateError
from tuner.spec.argument import Parameter, Role
from tuner.spec.operator import Operator
from tuner.spec.plan import Launch, Plan
from tuner.spec.problem import P


def with_present_arguments(operator: Operator[P], problem: P, plan: Plan) -> Plan:
    """Return the plan without the optional arguments that are absent from the problem."""
    if not any(argument.optional for argument in operator.arguments):
        return plan
    absent = {argument.name for argument in operator.arguments if not argument.is_present(problem)}
    every = tuple(one.name for some in (operator.arguments, plan.workspaces, plan.maps) for one in some)

    def present(launch: Launch) -> Launch:
        names = every if launch.arguments is None else launch.arguments
        return replace(launch, arguments=tuple(name for name in names if name not in absent))

    return replace(plan, launches=tuple(map(present, plan.launches)))


def parameters(operator: Operator[P], problem: P, plan: Plan, launch: Launch) -> tuple[Parameter, ...]:
    """Return the parameters of one kernel, in order."""
    known = {argument.name: argument for argument in operator.arguments}
    spaces = {workspace.name: workspace for workspace in plan.workspaces}
    maps = {tensor_map.name: tensor_map for tensor_map in plan.maps}
    names = launch.arguments if launch.arguments is not None else (*known, *spaces, *maps)
    parameters: list[Parameter] = []
    for name in names:
        if name in known:
            parameters += known[name].parameters(problem) if known[name].is_present(problem) else []
        elif name in spaces:
            dtype, restrict = spaces[name].dtype, "" if spaces[name].exchanged else "__restrict__ "
            parameters.append(Parameter(f"{dtype.cuda}* {restrict}{name}", name, dtype, pointer=True))
        elif name in maps:
            argument = known[maps[name].argument]
            declaration = f"const __grid_constant__ TensorMap {name}"
            parameters.append(Parameter(declaration, argument.name, argument.dtype_of(problem), tensor_map=maps[name]))
        else:
            raise TemplateError(f"launch {launch.entry} takes {name!r}: no argument, workspace or tensor map")
    return tuple(parameters)


def signature(operator: Operator[P], problem: P, plan: Plan, launch: Launch) -> str:
    """Return the C++ parameter list of one kernel."""
    return ", ".join(parameter.declaration for parameter in parameters(operator, problem, plan, launch))


def scalars(operator: Operator[P], problem: P, given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Return the values of scalar arguments from the call, a Problem field or a default; free scalars are omitted."""
    sizes: dict[str, float] = {}
    for argument in operator.arguments:
        if argument.role is not Role.SCALAR:
            continue
        if given and given.get(argument.name) is not None:
            sizes[argument.name] = given[argument.name]
        elif argument.default is not None:
            sizes[argument.name] = argument.default(problem)
        elif not argument.required(problem):
            sizes[argument.name] = getattr(problem, argument.name)
    return sizes
