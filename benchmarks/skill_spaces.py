"""Third-party kernels with exhaustive measurements: their location in the benchmark hub, and their launches.

The sources are read from the checkout on use (github.com/AutoTuningAssociation/benchmark_hub). This file defines the
macros, arguments and grid of each kernel, as in the hub's own scripts, and writes an operator's folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from tuner.errors import UsageError

# OpenCL C as CUDA: vectors of eight are aligned, and the work-group size is the block size of the launch.
_OPENCL = """\
#define __kernel
#define __global
#define __local __shared__
#define LOCAL_PTR
#define restrict __restrict__
#define USE_INLINE_KEYWORD
#define inline __device__ __forceinline__
#define barrier(_) __syncthreads()
struct __align__(16) float8 { float s0, s1, s2, s3, s4, s5, s6, s7; };
struct __align__(16) float16 { float s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, sA, sB, sC, sD, sE, sF; };
inline int get_local_id(int axis) { return axis ? threadIdx.y : threadIdx.x; }
inline int get_group_id(int axis) { return axis ? blockIdx.y : blockIdx.x; }
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A kernel of the hub. Texts are Python and CUDA; `{name}` in a path is replaced by the name of a GPU's
    recording.
    """

    name: str
    sources: tuple[str, ...]
    entry: str
    threads: tuple[str, str]  # macros, or products of macros
    grid: tuple[str, str]  # Python expressions of the fields of `p` (Problem) and `c` (Config)
    fields: str  # fields of Problem
    arguments: str
    recording: str
    gpu: str  # GPU of the recording by default
    flops: str = "0.0"
    inputs: str = ""
    before: str = ""  # CUDA code before the sources
    only: Mapping[str, int] = ()  # type: ignore[assignment]  # values for which the source is known to be valid
    fixed: Mapping[str, int] = ()  # type: ignore[assignment]  # macros that do not vary


_DRAWN = "rng.standard_normal({}).astype(np.float32)"

SPACES = {
    space.name: space
    for space in (
        Recorded(
            name="convolution",
            sources=("kernels/convolution_milo.cu",),
            entry="convolution_kernel",
            threads=("block_size_x", "block_size_y"),
            grid=("-(-4096 // (c.block_size_x * c.tile_size_x))", "-(-4096 // (c.block_size_y * c.tile_size_y))"),
            fields='pixels: int = static("", default=4096 * 4096)\n'
            'padded: int = static("", default=4110 * 4110)\nweights: int = static("", default=225)',
            arguments='Argument("output", DType.FP32, ("pixels",), Role.OUTPUT),\n'
            'Argument("input", DType.FP32, ("padded",)),\nArgument("filter", DType.FP32, ("weights",)),\n'
            'Argument("d_filter", DType.FP32, ("weights",), constant=True),',
            recording="cachefiles/convolution_milo/{name}.json.gz",
            gpu="A100",
            flops="2.0 * problem.pixels * problem.weights",
            only={"use_shmem": 1},  # the source supports no other value
            fixed={"filter_height": 15, "filter_width": 15},
        ),
        Recorded(
            name="gemm",
            sources=tuple(
                f"kernels/gemm_milo/{part}.opencl"
                for part in ("common", "xgemm_part1", "xgemm_part2", "xgemm_part3", "xgemm_part4")
            ),
            entry="Xgemm",
            threads=("MDIMC", "NDIMC"),
            grid=("p.kSizeM // c.MWG", "p.kSizeN // c.NWG"),
            fields="\n".join(f'kSize{axis}: int = extent("", default=4096)' for axis in "MNK"),
            arguments="\n".join(
                (
                    *(f'Argument("kSize{axis}", DType.INT32, role=Role.SCALAR),' for axis in "MNK"),
                    *(
                        f'Argument("{name}", DType.FP32, role=Role.SCALAR, default=lambda _: 1.0),'
                        for name in ("arg_alpha", "arg_beta")
                    ),
                    'Argument("agm", DType.FP32, ("kSizeK", "kSizeM")),',
                    'Argument("bgm", DType.FP32, ("kSizeK", "kSizeN")),',
                    'Argument("cgm", DType.FP32, ("kSizeN", "kSizeM"), Role.UPDATED),',
                    *(
                        f'Argument("{name}", DType.INT32, role=Role.SCALAR, default=lambda _: 0),'
                        for name in ("b_offset", "c_offset")
                    ),
                )
            ),
            recording="currently_unused/cachefiles/KernelTuner data/gemm/{name}.json.gz",
            gpu="RTX 3090",
            flops="2.0 * problem.kSizeM * problem.kSizeN * problem.kSizeK",
            before=_OPENCL,
            fixed={"GEMMK": 0, "KREG": 1, "KWG": 32, "KWI": 2, "STRM": 0, "STRN": 0, "PRECISION": 32},
        ),
        Recorded(
            name="pnpoly",
            sources=("currently_unused/kernels/pnpoly.cu",),
            entry="cn_pnpoly",
            threads=("block_size_x", "1"),
            grid=("-(-p.n // (c.block_size_x * c.tile_size))", "1"),
            fields='n: int = extent("", default=20_000_000)\n\n'
            "@property\ndef coordinates(self) -> int:\n    return 2 * self.n\n\n"
            "@property\ndef corners(self) -> int:\n    return 2 * 600",
            arguments='Argument("bitmap", DType.INT32, ("n",), Role.OUTPUT),\n'
            'Argument("points", DType.FP32, ("coordinates",)),\nArgument("n", DType.INT32, role=Role.SCALAR),\n'
            'Argument("d_vertices", DType.FP32, ("corners",), constant=True),',
            recording="currently_unused/cachefiles/KernelTuner data/pnpoly/{name}.json.gz",
            gpu="RTX 3090",
            flops="5.0 * 600 * problem.n",
            # A star-shaped polygon around the points.
            inputs="angle = np.linspace(0, 2 * np.pi, 600, endpoint=False)\n"
            "radius = rng.uniform(0.5, 3, 600)\n"
            "corners = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)\n"
            "points = rng.standard_normal(problem.coordinates, dtype=np.float32)\n"
            'return {"points": points, "d_vertices": corners.astype(np.float32).reshape(-1)}',
        ),
        Recorded(
            name="dedispersion",
            sources=("kernels/dedisp_milo/dedispersion.h", "kernels/dedisp_milo/dedispersion.cu"),
            entry="dedispersion_kernel",
            threads=("block_size_x", "block_size_y"),
            grid=("-(-25000 // (c.block_size_x * c.tile_size_x))", "-(-2048 // (c.block_size_y * c.tile_size_y))"),
            fields='samples: int = static("", default=1536 * 25650)\nsums: int = static("", default=2048 * 25000)\n'
            'channels: int = static("", default=1536)',
            arguments='Argument("input", DType.UINT8, ("samples",)),\n'
            'Argument("output", DType.FP32, ("sums",), Role.OUTPUT),\nArgument("shifts", DType.FP32, ("channels",)),',
            recording="cachefiles/dedispersion_milo/{name}.json.gz",
            gpu="A100",
            flops="1.0 * problem.sums * problem.channels",
            # The delay of a radio wave is 4148.808 s / f², with f in MHz; here in samples of 40.96 µs relative to the
            # highest f.
            inputs="frequency = 1425.0 + 0.1953125 * np.arange(1536)\n"
            "shifts = 4148.808 * (frequency**-2 - frequency[-1] ** -2) / 0.00004096\n"
            "drawn = np.zeros(problem.samples, np.uint8)\n"
            'return {"input": drawn, "shifts": shifts.astype(np.float32)}',
            fixed={"block_size_z": 1, "loop_unroll_factor_channel": 0},
        ),
    )
}


def recording_of(space: Recorded, hub: Path, gpu: str) -> Path:
    """Return the file of a GPU's measurements. Raises UsageError, which lists the available ones, if there is none."""
    folder = hub / space.recording
    wanted_gpu = gpu.replace("RTX A", "A").replace(" ", "").replace("_", "").lower()
    recordings = {path.name.removesuffix(".json.gz"): path for path in sorted(folder.parent.glob("*.json.gz"))}
    for name, path in recordings.items():
        if name.replace("_", "").lower() == wanted_gpu:
            return path
    raise UsageError(
        f"{folder.parent} has no recording of {space.name} on {gpu} (known: {', '.join(recordings) or 'none'})"
    )


def write(space: Recorded, hub: Path, choices: Mapping[str, object], folder: Path) -> None:
    """Write an operator's folder of the kernel, with the recorded configs as its space.

    Raises OSError if the checkout lacks a source.
    """
    target = folder / space.name / "recorded"
    target.mkdir(parents=True)
    (target.parent / "operator.py").write_text(_operator(space))
    (target / "implementation.py").write_text(_implementation(space, choices))
    text = "\n".join((hub / source).read_text() for source in space.sources)
    (target / "kernel.cu.jinja").write_text(_kernel(space, choices, text.replace('#include "dedispersion.h"', "")))


def _operator(space: Recorded) -> str:
    inputs = f"def inputs(problem, rng, kind):\n{indent(space.inputs, '    ')}\n\n" if space.inputs else ""
    return f"""\
from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Cost, DType, Operator, Role, extent, static


@dataclass(frozen=True)
class Problem:
{indent(space.fields, "    ")}


ARGUMENTS = (
{indent(space.arguments, "    ")}
)


def cost(problem):
    tensors = [each for each in ARGUMENTS if each.role is not Role.SCALAR]
    return Cost(flops={space.flops}, bytes=float(sum(each.nbytes(problem) for each in tensors)))


def reference(problem, arrays):
    raise NotImplementedError("this kernel is compiled and predicted, not run")


{inputs}OPERATOR = Operator(
    name="{space.name}", summary="recorded", problem=Problem, arguments=ARGUMENTS, reference=reference, cost=cost,
    tails=lambda problem: (problem,), {"inputs=inputs," if inputs else ""}
)
"""


def _implementation(space: Recorded, choices: Mapping[str, object]) -> str:
    names = [f"c.{name}" if name in choices else name for name in space.threads]
    return f"""\
from dataclasses import dataclass

from tuner.spec import Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
{indent(chr(10).join(f"{name}: int" for name in choices), "    ")}


def space(problem, arch):
    return Space(Config, choices={ {name: tuple(values) for name, values in choices.items()}!r})  # type: ignore


def plan(p, c):
    threads = ({", ".join(names)})
    return Plan((Launch("{space.entry}", ({space.grid[0]}, {space.grid[1]}, 1), threads, 0),), {{}})


IMPLEMENTATION = Implementation(
    name="recorded", summary="as recorded", config=Config, space=space, plan=plan, checked_on="ptx"
)
"""


def _kernel(space: Recorded, choices: Mapping[str, object], text: str) -> str:
    macros = [f"#define {name} {{{{ {name} }}}}" for name in choices]
    macros += [f"#define {name} {value}" for name, value in dict(space.fixed).items()]
    return "\n".join((*macros, space.before, 'extern "C" {', text, "}", ""))
