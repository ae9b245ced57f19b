"""Replays the launches of a config from their machine code: whole CTAs with their warp roles.

The result is a number of cycles at a given clock. It affects no ranking and no cost.
"""

from math import prod

import numpy as np

from tuner.arch import GPU
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.cta.grid import Replay, replay
from tuner.compiler.sass.cta.launch import PARAMETERS, Box, KernelLaunch
from tuner.compiler.sass.cta.program import program
from tuner.compiler.sass.cta.rates import rates_of
from tuner.compiler.usage import occupancy
from tuner.errors import UsageError
from tuner.spec.argument import DeviceTensor, Role, dense_strides
from tuner.spec.instance import Instance
from tuner.spec.layout import workspaces
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Launch
from tuner.spec.tensor_map import MappedTensor

_MAP_BYTES, _MAP_ALIGNMENT = 128, 64  # of a tensor map among the parameters
_SPACING = 1 << 40  # distance between the addresses of tensors
REPLAYED = ("sm_90a",)  # arches whose machine code is replayed


def replay_launch(instance: Instance, launch: Launch, cubin: Cubin, gpu: GPU, clock_mhz: float) -> Replay:
    """Replay one launch of a config's plan on all SMs of a GPU model.

    Raises UsageError for an arch or an instruction that the replay does not model, MachineError without nvdisasm.
    """
    if gpu.arch.name not in REPLAYED:
        raise UsageError(f"machine code of {gpu.arch.name} is not replayed, only that of {', '.join(REPLAYED)}")
    kernel = program(launch.entry, cubin.disassemble(launch.entry), cubin.instructions(launch.entry), gpu)
    resident = occupancy(cubin.entries[launch.entry], launch, gpu.arch).ctas
    return replay(kernel, kernel_launch(instance, launch, resident), gpu, rates_of(gpu, clock_mhz))


def kernel_launch(instance: Instance, launch: Launch, resident: int) -> KernelLaunch:
    """Return a launch with the bytes of its parameters, as a device receives them, and the boxes of its tensor maps."""
    operator, problem, plan = instance.operator, instance.problem, instance.plan()
    shapes = {x.name: x.shape(problem) for x in operator.arguments if x.role is not Role.SCALAR}
    tensors = {
        name: DeviceTensor(_SPACING * number, shape, dense_strides(shape))
        for number, (name, shape) in enumerate(shapes.items(), 1)
    }
    spaces = enumerate(workspaces(plan), len(tensors) + 1)
    tensors |= {space.name: space.located(_SPACING * number) for number, space in spaces}
    values = [x.value(tensors, scalars(operator, problem, {})) for x in parameters(operator, problem, plan, launch)]
    data, boxes = bytearray(), {}
    for value in values:
        mapped = isinstance(value, MappedTensor)
        alignment = _MAP_ALIGNMENT if mapped else np.asarray(value).itemsize
        data += bytes(-(PARAMETERS + len(data)) % alignment)
        if isinstance(value, MappedTensor):
            size = value.dtype.itemsize
            boxes[len(data)] = Box(prod(value.box) * size, value.name, prod(value.shape) * size)
        data += bytes(_MAP_BYTES) if mapped else np.asarray(value).tobytes()
    return KernelLaunch(
        launch.grid, launch.block_threads, launch.smem_bytes, launch.cluster, bytes(data), boxes, resident
    )
