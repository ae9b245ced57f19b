"""The description of a launch for a replay: its grid, its parameters, and the tensors that its copies read."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

PARAMETERS = 0x210  # offset of a kernel's parameters in its constant bank, on sm_90
PARAMETER_ADDRESS = 0x7FFE00000000  # value of their base address
_STACK_TOP = 0xFFFDC0


@dataclass(frozen=True, slots=True)
class Box:
    """The box that one copy with a tensor map moves."""

    nbytes: int
    tensor: str
    tensor_bytes: int  # of the complete tensor


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch. `boxes` are indexed by the offset of their map among the parameters."""

    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    cluster: int
    parameters: bytes
    boxes: Mapping[int, Box]
    resident: int = 1  # blocks on an SM

    @property
    def blocks(self) -> int:
        x, y, z = self.grid
        return x * y * z


def constant_bank(launch: KernelLaunch) -> bytes:
    """Return the kernel's constant bank: sizes of the launch at the offsets that ptxas reads on sm_90."""
    bank = bytearray(PARAMETERS) + bytearray(launch.parameters)
    x, y, z = launch.grid
    clustered = int(launch.cluster > 1)
    words = {0: launch.threads, 4: 1, 8: 1, 12: x, 16: y, 20: z, 0x28: _STACK_TOP}
    words |= {0x140: clustered, 0x144: launch.cluster, 0x148: 1, 0x14C: 1}
    for offset, word in words.items():
        bank[offset : offset + 4] = word.to_bytes(4, "little")
    for offset, size in ((0x150, launch.cluster), (0x154, 1), (0x158, 1)):
        bank[offset : offset + 4] = np.float32(1 / size).tobytes()
    bank[0x198:0x1A0] = PARAMETER_ADDRESS.to_bytes(8, "little")
    return bytes(bank)
