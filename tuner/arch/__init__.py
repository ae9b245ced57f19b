"""The supported GPUs: their limits, models and names."""

from tuner.arch.limits import ARCHES, MMA_FLOPS, PARTITIONS, Arch
from tuner.arch.models import DEVICES, Device
from tuner.arch.naming import GPU, closest_model, custom_name, gpu, has_model_name, is_listed, model

__all__ = [
    "ARCHES",
    "DEVICES",
    "GPU",
    "MMA_FLOPS",
    "PARTITIONS",
    "Arch",
    "Device",
    "closest_model",
    "custom_name",
    "gpu",
    "has_model_name",
    "is_listed",
    "model",
]
