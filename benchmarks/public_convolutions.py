"""Folders of operators for public convolutions, whose kernels are compiled and predicted as they are."""

from pathlib import Path


def write(place: Path, dims: int, *, constant: bool, kernel: str) -> None:
    """The operator's folder of convolutions whose mask is an argument, or constant memory, in `place`."""
    name = f"convolutions_{dims}d_{'constant' if constant else 'masked'}"
    sizes = ("width",) if dims == 1 else ("height", "width")
    masks = ("mask_width",) if dims == 1 else ("mask_height", "mask_width")
    scalars = "".join(
        f'        Argument("{name}", DType.INT32, role=Role.SCALAR, default=lambda p: p.{value}),\n'
        for name, value in [*((each, "mask") for each in masks), *((each, "size") for each in sizes)]
    )
    if dims == 2:
        scalars += '        Argument("channels", DType.INT32, role=Role.SCALAR),\n'
    mask = f'        Argument("M", DType.FP32, ("weights",){", constant=True" if constant else ""}),\n'
    operator = _CONVOLUTIONS.format(
        name=name,
        before="" if constant else mask,
        after=mask if constant else "",
        scalars=scalars,
        weights=121 if constant else f"self.mask ** {dims}",
        pixels=f"self.size ** {dims} * self.channels",
        flops=f"2.0 * p.pixels * p.mask ** {dims}",
    )
    kinds = ["constant_memory", "tiled", "tiled_caching"] if constant else ["basic"]
    names = [f"convolution_{dims}D_{kind}_kernel" for kind in kinds if dims == 1 or kind != "tiled_caching"]
    plan = _PLAN_1D if dims == 1 else _PLAN_2D
    folder = place / name / "public"
    folder.mkdir(parents=True)
    (folder.parent / "operator.py").write_text(operator)
    (folder / "implementation.py").write_text(_KERNELS.format(names=names, plan=plan))
    (folder / "kernel.cu.jinja").write_text(kernel)


_CONVOLUTIONS = """\
from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Cost, DType, Operator, Role, extent


@dataclass(frozen=True)
class Problem:
    size: int = extent("side", default=4096)
    mask: int = extent("side of the mask", default=5)
    channels: int = extent("channels", default=1)

    @property
    def pixels(self):
        return {pixels}

    @property
    def weights(self):
        return {weights}


def reference(problem, arrays):
    raise NotImplementedError("these kernels are compiled and predicted, not run")


OPERATOR = Operator(
    name="{name}", summary="convolution", problem=Problem, reference=reference, tails=lambda problem: (problem,),
    arguments=(
        Argument("N", DType.FP32, ("pixels",)),
{before}        Argument("P", DType.FP32, ("pixels",), Role.OUTPUT),
{scalars}{after}    ),
    cost=lambda p: Cost(flops={flops}, bytes=8.0 * p.pixels),
    inputs=lambda p, rng, kind: {{"N": np.zeros(p.pixels, np.float32), "M": np.zeros(p.weights, np.float32)}},
)
"""
_KERNELS = """\
from dataclasses import dataclass

from tuner.spec import Implementation, Launch, Plan, Space


@dataclass(frozen=True, slots=True)
class Config:
    which: str
    block: int


def space(problem, arch):
    return Space(Config, choices={{"which": tuple({names}), "block": (8, 16, 32, 64, 128, 256, 512, 1024)}})


def plan(p, c):
    {plan}


IMPLEMENTATION = Implementation(
    name="public", summary="as published", config=Config, space=space, plan=plan, checked_on="ptx"
)
"""
_PLAN_1D = """shared = 0 if "basic" in c.which or "constant" in c.which else (c.block + p.mask - 1) * 4
    return Plan((Launch(c.which, (-(-p.size // c.block), 1, 1), c.block, shared),), {})"""
_PLAN_2D = """step = c.block - p.mask + 1 if "tiled" in c.which else c.block
    blocks = -(-p.size // step)
    shared = c.block * c.block * 4 if step < c.block else 0
    return Plan((Launch(c.which, (blocks, blocks, 1), (c.block, c.block), shared),), {})"""
