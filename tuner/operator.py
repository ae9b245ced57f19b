"""What a folder of templates/ has to say, with all that it imports for it: the operator (what is computed) and its
implementations (how)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from tuner.arch import GPU, Arch
from tuner.argument import Argument as Argument
from tuner.argument import Located as Located
from tuner.argument import Parameter as Parameter
from tuner.argument import Role as Role
from tuner.argument import within as within
from tuner.canonical import encode
from tuner.dtype import DType
from tuner.errors import TemplateError
from tuner.result import Fields, Scalar
from tuner.space import Space
from tuner.tensor_map import TensorMap

P = TypeVar("P")
C = TypeVar("C")
Array = npt.NDArray[Any]
Arrays = dict[str, Any]  # argument name → array, or Python number for a scalar
Updated = Annotated[Any, "updated in place"]  # of a call's parameter: an array that some calls change


def static(help: str, *, default: Any = MISSING, choices: Sequence[Any] = ()) -> Any:
    """A Problem field that selects code: another value is another kernel."""
    return field(default=default, metadata={"kind": "static", "help": help, "choices": tuple(choices)})


def extent(help: str, *, default: Any = MISSING) -> Any:
    """A Problem field that is a size at run time: one kernel serves every value."""
    return field(default=default, metadata={"kind": "extent", "help": help, "choices": ()})


def extents(problem: Any) -> tuple[str, ...]:
    """Names of the run-time sizes of a Problem (value or type)."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "extent")


def statics(problem: Any) -> tuple[str, ...]:
    """Names of the fields of a Problem (value or type) that select code."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "static")


def to_fields(value: Any) -> dict[str, Scalar]:
    """A Problem or Config as plain data; enums by their value."""
    items = ((each.name, getattr(value, each.name)) for each in fields(value))
    return {name: item.value if isinstance(item, Enum) else item for name, item in items}


def from_fields(cls: type[P], data: Fields) -> P:
    """The Problem or Config that `to_fields` made `data` of."""
    kinds: dict[str, Any] = {f.name: f.type for f in fields(cls)}  # type: ignore[arg-type]  # P is a dataclass
    return cls(**{k: kinds[k](v) if _is_enum(kinds[k]) else v for k, v in data.items()})


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def canonical(value: Any) -> str:
    """Canonical JSON of a Problem or Config: equal values, equal text."""
    return encode(to_fields(value))


@dataclass(frozen=True, slots=True)
class Workspace:
    """Device memory that the launches of one plan share."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    exchanged: bool = False  # between blocks of one launch: __restrict__ would let accesses pass acquires and releases

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * int(prod(self.shape))  # a plan may count with NumPy


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; `arguments` names what it takes, in order (default: the operator's, workspaces, maps).

    `cluster` blocks along x are a thread-block cluster (sm_90 and later), as its __cluster_dims__(cluster, 1, 1) says.
    A block allocates `tensor_columns` columns of its SM's tensor memory (where it has tcgen05).
    """

    entry: str
    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    arguments: tuple[str, ...] | None = None
    cluster: int = 1
    tensor_columns: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a config on a problem. `constants` are what the template reads besides Problem and Config fields;
    like everything a template reads they may depend on static fields only, so that one cubin serves every extent."""

    launches: tuple[Launch, ...]
    constants: Mapping[str, Scalar]
    workspaces: tuple[Workspace, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    @property
    def digest(self) -> str:
        """Of how the rendered text is launched, and on what memory: what the text itself does not say."""
        return sha256(repr((self.launches, self.workspaces, self.maps)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work any implementation must do: the two floors.

    `items` is what people count a problem's size in, such as the queries of all heads, and `item` one of them in words.
    """

    flops: float
    bytes: float
    items: float = 1.0
    item: str = "problem"


@dataclass(frozen=True, slots=True)
class Work:
    """What one launch of an implementation does for a problem, summed over its CTAs, as it counts itself.

    Instructions are per warp: one `mma` is one m16n8k16 (an m16n8k8 is half), one `fma` is 32 lanes. `wgmma` counts
    the same products where warpgroups issue them, at their own rate: an m64n8k16 is 4. `tcgen05` counts them where one
    thread issues them and tensor memory takes the sums: an m128n8k16 is 8. `tf32` says how many of `mma`
    have tf32 operands: an m16n8k8 of those takes as long as an m16n8k16 of 16 bits. `step_mma` and `step_other`
    say what of a step is serial: instructions of which each needs the result of the one before, from the step's first
    to what the next step needs; 0 where nobody counted. The others are shuffles, loads from shared memory and barriers,
    which take as long as an mma, or what else takes that long: 8 fma.
    """

    ctas: int
    warps: int  # a CTA
    mma: float
    fma: float  # fp32 FMA, FADD, FMUL, FMNMX
    mufu: float  # ex2, lg2, rcp …
    alu: float  # integer, logic, conversion, move
    smem_wavefronts: float  # 128-byte shared-memory cycles, conflicts included
    l2_bytes: float  # between L2 and the SMs
    dram_bytes: float  # between DRAM and L2, at least
    barriers: float  # block barriers, summed over CTAs
    longest_cta: float  # the largest CTA's work over the mean's
    chain: float  # dependent loop steps of the longest CTA
    stages: int = 1  # loop steps whose loads have a place: one less are in flight while a step computes
    wgmma: float = 0.0  # of m16n8k16, through wgmma
    tf32: float = 0.0  # of mma, at half the rate
    step_mma: float = 0.0
    step_other: float = 0.0
    cluster_bytes: float = 0.0  # between the SMs of a cluster
    tcgen05: float = 0.0  # of m16n8k16, through tcgen05
    paired: float = 0.0  # of fma, two to an instruction
    around: float = 0.0  # passes, by all warps, of what lies around the main loop; 0 where it is short beside that

    @property
    def products(self) -> float:
        """In units of m16n8k16, whichever instruction makes them."""
        return self.mma + self.wgmma + self.tcgen05


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An output is right when its RMSE ratio is at most max(`absolute`, `slack` × the error of `Operator.rounded`)."""

    absolute: float
    slack: float = 1.2


@dataclass(frozen=True, slots=True)
class Request:
    """A call of an application: array arguments by name, the Problem's static fields that arrays do not show, scalars.

    `axes[name]` says where each of the argument's dims lies in the caller's array (default: in order).
    """

    arrays: Mapping[str, Any]
    statics: Fields = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def left_out(*_: Any) -> Any:
    """Stands for a function that a folder does not define: `defaults` puts one in its place."""
    raise TemplateError("an operator is complete when `operators` has loaded it")


@dataclass(frozen=True)
class Operator(Generic[P]):
    """What is computed. `folder` is where it was found.

    inputs(problem, rng, kind) draws every INPUT, UPDATED and free scalar for one of `input_kinds`; reference(problem,
    arrays) returns every OUTPUT in float64, and every UPDATED as the call leaves it, equal to the input in all that the
    call does not touch; rounded(problem, arrays) does so rounding where kernels round; tails(problem) is the problem's
    statics on small extents that hit every edge; call(...) is the application's signature. What has a default may be
    left out: `operators` loads the operator with what `defaults` makes of the rest.
    """

    name: str
    summary: str
    problem: type[P]
    arguments: tuple[Argument, ...]
    reference: Callable[[P, Arrays], Arrays]
    inputs: Callable[[P, np.random.Generator, str], Arrays] = left_out
    input_kinds: tuple[str, ...] = ("normal",)
    rounded: Callable[[P, Arrays], Arrays] = left_out
    tolerance: Callable[[P], Mapping[str, Tolerance]] = left_out
    cost: Callable[[P], Cost] = left_out
    tails: Callable[[P], tuple[P, ...]] = left_out
    call: Callable[..., Request] = left_out
    folder: Path = Path()

    def argument(self, name: str) -> Argument:
        return next(argument for argument in self.arguments if argument.name == name)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """What a call returns."""
        return tuple(argument for argument in self.arguments if argument.role is Role.OUTPUT)

    @property
    def updated(self) -> tuple[Argument, ...]:
        """What a call changes in place."""
        return tuple(argument for argument in self.arguments if argument.role is Role.UPDATED)

    @property
    def written(self) -> tuple[Argument, ...]:
        """Where a call leaves results: its outputs, and what it updates."""
        return tuple(argument for argument in self.arguments if argument.written)


@dataclass(frozen=True)
class Implementation(Generic[P, C]):
    """One way to compute an operator: its Config, space and plan.

    refusal(problem, arch) says why it cannot serve a problem there at all (None: it can); default(problem, arch) is a
    config that always works there; work(problem, config, gpu) has one Work a launch, in the plan's order. These three
    may be left out, too.
    """

    name: str
    summary: str
    config: type[C]
    space: Callable[[P, Arch], Space[C]]
    plan: Callable[[P, C], Plan]
    refusal: Callable[[P, Arch], str | None] = left_out
    default: Callable[[P, Arch], C] = left_out
    work: Callable[[P, C, GPU], tuple[Work, ...]] = left_out
    declared: bool = True  # whether `work` is the implementation's own
    example: P | None = None  # a problem it serves, where it refuses the operator's default problem
    checked_on: Literal["emulator", "ptx"] = "emulator"  # ptx: any CUDA that NVRTC takes, and fewer races are found
    unproven: bool = False  # no device has confirmed its instructions yet: only a record makes the dispatcher run it


def parameters(operator: Operator[P], problem: P, plan: Plan, launch: Launch) -> tuple[Parameter, ...]:
    """The parameters of one kernel, in order."""
    known = {argument.name: argument for argument in operator.arguments}
    spaces = {workspace.name: workspace for workspace in plan.workspaces}
    maps = {each.name: each for each in plan.maps}
    names = launch.arguments if launch.arguments is not None else (*known, *spaces, *maps)
    found: list[Parameter] = []
    for name in names:
        if name in known:
            found += known[name].parameters(problem)
        elif name in spaces:
            dtype, restrict = spaces[name].dtype, "" if spaces[name].exchanged else "__restrict__ "
            found.append(Parameter(f"{dtype.cuda}* {restrict}{name}", name, dtype, pointer=True))
        elif name in maps:
            argument = known[maps[name].argument]
            declaration = f"const __grid_constant__ TensorMap {name}"
            found.append(Parameter(declaration, argument.name, argument.dtype_of(problem), tensor_map=maps[name]))
        else:
            raise TemplateError(f"launch {launch.entry} takes {name!r}: no argument, workspace or tensor map")
    return tuple(found)


def signature(operator: Operator[P], problem: P, plan: Plan, launch: Launch) -> str:
    """The C++ parameter list of one kernel."""
    return ", ".join(parameter.declaration for parameter in parameters(operator, problem, plan, launch))


def scalars(operator: Operator[P], problem: P, given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The values of scalar arguments: what the caller gave, a Problem field, or a default; without what is free."""
    found: dict[str, float] = {}
    for argument in operator.arguments:
        if argument.role is not Role.SCALAR:
            continue
        if given and given.get(argument.name) is not None:
            found[argument.name] = given[argument.name]
        elif argument.default is not None:
            found[argument.name] = argument.default(problem)
        elif not argument.free(problem):
            found[argument.name] = getattr(problem, argument.name)
    return found
