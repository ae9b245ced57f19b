"""`tuner gpus`: the architectures and GPU models that `--gpu` accepts."""

from tuner.arch import ARCHES, DEVICES
from tuner.cli.output import JsonOption, emit_json, table


def list_gpus(as_json: JsonOption = False) -> None:
    """List the architectures and the GPU models, with the rates that predictions assume."""
    rows = [
        (device.arch.name, device.name, device.sm_count, device.clock_mhz, device.dram_gb_s)
        for arch in ARCHES
        for device in DEVICES.values()
        if device.arch.name == arch
    ]
    names = ("architecture", "model", "SMs", "MHz", "GB/s")
    if as_json:
        emit_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    table("GPUs: --gpu takes an architecture or a model", names, rows, right=names[2:])
