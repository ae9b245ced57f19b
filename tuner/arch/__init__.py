"""The GPUs that are served: their limits, their models and their names."""

from tuner.arch.limits import ARCHES, MMA_FLOPS, PARTITIONS, Arch
from tuner.arch.models import DEVICES, Device
from tuner.arch.naming import GPU, gpu, is_called, is_listed, kin, model, own_name

__all__ = [
    "ARCHES",
    "DEVICES",
    "GPU",
    "MMA_FLOPS",
    "PARTITIONS",
    "Arch",
    "Device",
    "gpu",
    "is_called",
    "is_listed",
    "kin",
    "model",
    "own_name",
]
