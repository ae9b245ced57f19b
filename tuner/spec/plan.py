"""The execution of a config on a problem: its launches and their shared memory allocations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod

from tuner.base.fields import Scalar
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import TensorMap


@dataclass(frozen=True, slots=True)
class Workspace:
    """Device memory shared by the launches of one plan."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    exchanged: bool = False  # blocks of one launch communicate through it, so it must not be __restrict__

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * int(prod(self.shape))  # a plan may use NumPy integers


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; `arguments` lists its argument names in order (default: the operator's, workspaces, maps).

    `cluster` blocks along x are a thread-block cluster (sm_90 and later), as its __cluster_dims__(cluster, 1, 1) says.
    A block allocates `tensor_columns` columns of its SM's tensor memory (where it has tcgen05), and has so many
    `threads`, or (x, y) or (x, y, z). `entry` is an extern "C" kernel, or what C++ calls one: `scale<float, 64>`.

    `sample` says which blocks, by place in the grid with x fastest, a check on the CPU runs where the sizes of a
    problem are in the code, so that no edge is small: what they write is compared, and the verdict tells how many ran.
    """

    entry: str
    grid: tuple[int, int, int]
    threads: int | tuple[int, ...]
    smem_bytes: int
    arguments: tuple[str, ...] | None = None
    cluster: int = 1
    tensor_columns: int = 0
    sample: tuple[int, ...] | None = field(default=None, repr=False)  # does not affect what is launched

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads per block along x, y and z."""
        sizes = (*self.threads, 1, 1) if isinstance(self.threads, tuple) else (self.threads, 1, 1)
        return sizes[0], sizes[1], sizes[2]

    @property
    def block_threads(self) -> int:
        """Threads per block."""
        return prod(self.block)


@dataclass(frozen=True, slots=True)
class Plan:
    """The execution of a config on a problem.

    `constants` are the values that the template reads besides Problem and Config fields. Like everything a template
    reads, they may depend on static fields only, so that one cubin serves every extent.
    """

    launches: tuple[Launch, ...]
    constants: Mapping[str, Scalar]
    workspaces: tuple[Workspace, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    @property
    def digest(self) -> str:
        """Return a digest of the launches and their memory, which the rendered text does not contain."""
        return sha256(repr((self.launches, self.workspaces, self.maps)).encode()).hexdigest()[:16]
