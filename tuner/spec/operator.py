"""The contents of a folder under templates/: the operator (what is computed) and its implementations (how)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np

from tuner.arch import GPU, Arch
from tuner.base.fields import Fields
from tuner.errors import TemplateError
from tuner.spec.argument import Argument, Role
from tuner.spec.block import Block
from tuner.spec.plan import Plan
from tuner.spec.problem import Arrays, P
from tuner.spec.space import Space
from tuner.spec.tolerance import Tolerance

C = TypeVar("C")
Updated = Annotated[Any, "updated in place"]  # annotates a call's parameter: an array that some calls change


@dataclass(frozen=True, slots=True)
class Cost:
    """The minimum work of any implementation, from which two lower bounds on the time follow.

    `items` counts the unit in which a problem's size is usually given, such as queries of all heads; `item` names it.
    """

    flops: float
    bytes: float
    items: float = 1.0
    item: str = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work that one launch of an implementation declares for a problem, summed over its CTAs.

    Instructions are per warp: one `mma` is one m16n8k16 (an m16n8k8 is half), one `fma` is 32 lanes. `wgmma` counts the
    same products where warpgroups issue them, at their own rate: an m64n8k16 is 4. `tcgen05` counts them where one
    thread issues them and tensor memory holds the sums: an m128n8k16 is 8. `tf32` is the part of `mma` with tf32
    operands: an m16n8k8 of those takes as long as an m16n8k16 of 16 bits. `step_mma` and `step_other` are the critical
    path of a loop step, in instructions that depend on each other, up to what the next step needs; 0 if not counted.
    `step_other` counts shuffles, loads from shared memory and barriers, which take as long as an mma, and groups of 8
    fma.
    """

    ctas: int
    warps: int  # per CTA
    mma: float = 0.0
    fma: float  # fp32 FMA, FADD, FMUL, FMNMX
    mufu: float = 0.0  # ex2, lg2, rcp …
    alu: float  # integer, logic, conversion, move
    smem_wavefronts: float = 0.0  # wavefronts of 128 bytes, including bank conflicts
    l2_bytes: float  # traffic between L2 and the SMs
    dram_bytes: float  # minimum traffic between DRAM and L2
    barriers: float = 0.0  # block barriers, summed over CTAs
    longest_cta: float = 1.0  # the largest CTA's work / the mean; 1 without work
    chain: float  # dependent loop steps of the longest CTA
    stages: int = 1  # buffers for the loads of loop steps: stages - 1 loads are in flight during a step
    wgmma: float = 0.0  # products through wgmma, in units of m16n8k16
    tf32: float = 0.0  # part of mma at half the rate
    step_mma: float = 0.0
    step_other: float = 0.0
    cluster_bytes: float = 0.0  # traffic between the SMs of a cluster
    tcgen05: float = 0.0  # products through tcgen05, in units of m16n8k16
    paired: float = 0.0  # part of fma that is issued as two per instruction
    around: float = 0.0  # executions of the code around the main loop, summed over warps; 0 if negligible

    @property
    def products(self) -> float:
        """Matrix products in units of m16n8k16, over all instructions."""
        return self.mma + self.wgmma + self.tcgen05


@dataclass(frozen=True, slots=True)
class Request:
    """An application's call: array arguments by name, the static Problem fields that arrays do not imply, and scalars.

    `axes[name]` maps each dim of the argument to an axis of the caller's array (default: in order).
    """

    arrays: Mapping[str, Any]
    statics: Fields = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The operator that computes the gradients of an operator, and how the names of the two calls correspond.

    The backward call takes by name every parameter and output of the forward call that it shares with it. The gradient
    of `x` is called `dx`, unless `upstream` or `gradients` names it otherwise. Every other parameter of the forward
    call is in `no_gradient` or `unsupported`, with the reason; a tensor in `no_gradient` that requires grad is refused.
    """

    operator: str
    upstream: Mapping[str, str] = field(default_factory=dict)  # output → backward parameter that receives its gradient
    gradients: Mapping[str, str] = field(default_factory=dict)  # parameter → backward output that is its gradient
    no_gradient: Mapping[str, str] = field(default_factory=dict)  # parameter or output without a gradient → reason
    unsupported: Mapping[str, str] = field(
        default_factory=dict
    )  # parameter that a differentiated call must not pass → reason

    def of_output(self, name: str) -> str:
        """Return the backward call's parameter for the gradient of an output."""
        return self.upstream.get(name, f"d{name}")

    def of_parameter(self, name: str) -> str:
        """Return the backward call's output that is the gradient of a parameter."""
        return self.gradients.get(name, f"d{name}")


def not_defined(*_: Any) -> Any:
    """The placeholder for a function that a folder does not define; `defaults` replaces it."""
    raise TemplateError("an operator is complete only after `operators` has loaded it")


@dataclass(frozen=True)
class Operator(Generic[P]):
    """What is computed. `folder` is the directory that it was loaded from.

    A reference may mask (numpy.ma) elements that are undefined; they are not compared.

    inputs(problem, rng, kind) draws every INPUT, UPDATED and free scalar for one of `input_kinds`; reference(problem,
    arrays) returns every OUTPUT in float64, and every UPDATED as the call leaves it, equal to the input in all that the
    call does not touch; rounded(problem, arrays) does so rounding where kernels round; tails(problem) is the problem's
    statics on small extents that hit every edge; call(...) is the application's signature. Functions with a default may
    be omitted: `operators` completes the operator with those of `defaults`.
    """

    name: str
    summary: str
    problem: type[P]
    arguments: tuple[Argument, ...]
    reference: Callable[[P, Arrays], Arrays]
    inputs: Callable[[P, np.random.Generator, str], Arrays] = not_defined
    input_kinds: tuple[str, ...] = ("normal",)
    rounded: Callable[[P, Arrays], Arrays] = not_defined
    tolerance: Callable[[P], Mapping[str, Tolerance]] = not_defined
    cost: Callable[[P], Cost] = not_defined
    tails: Callable[[P], tuple[P, ...]] = not_defined
    call: Callable[..., Request] = not_defined
    gradient: Gradient | None = field(default=None, hash=False)  # excluded from the hash because its mappings have none
    folder: Path = Path()

    def argument(self, name: str) -> Argument:
        return next(argument for argument in self.arguments if argument.name == name)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The outputs of a call."""
        return tuple(argument for argument in self.arguments if argument.role is Role.OUTPUT)

    @property
    def constants(self) -> tuple[Argument, ...]:
        """The arguments that kernels read from `__constant__` symbols."""
        return tuple(argument for argument in self.arguments if argument.constant)

    @property
    def updated(self) -> tuple[Argument, ...]:
        """The arguments that a call updates in place."""
        return tuple(argument for argument in self.arguments if argument.role is Role.UPDATED)

    @property
    def written(self) -> tuple[Argument, ...]:
        """The arguments that a call writes: its outputs and updated arguments."""
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
    refusal: Callable[[P, Arch], str | None] = not_defined
    default: Callable[[P, Arch], C] = not_defined
    blocks: Callable[[P], tuple[Block, ...]] = lambda _: ()  # declared block resources of launches
    work: Callable[[P, C, GPU], tuple[Work, ...]] = not_defined
    declares_work: bool = True  # whether `work` was declared instead of derived
    example: P | None = None  # a problem that it serves, if it refuses the operator's default problem
    checked_on: Literal["emulator", "ptx"] = "emulator"  # ptx: any CUDA code, but fewer races are detected
    unproven: bool = False  # no GPU has run it yet: served only for a record, or where `tuner prove` confirmed it
    oracle: bool = False  # the naive implementation, one thread per output, a reference for the others
