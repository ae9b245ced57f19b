"""What a replay is told of a launch: its grid, its parameters, and the tensors that its copies read."""

from dataclasses import dataclass

PARAMETERS = 0x210  # where a kernel's parameters begin in its constant bank, on sm_90


@dataclass(frozen=True, slots=True)
class Box:
    """What one copy with a tensor map moves."""

    nbytes: int
    tensor: str
    tensor_bytes: int  # of the whole tensor


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch. `boxes` are by the offset of their map among the parameters."""

    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    cluster: int
    parameters: bytes
    boxes: dict[int, Box]
    resident: int = 1  # blocks on an SM

    @property
    def blocks(self) -> int:
        x, y, z = self.grid
        return x * y * z
