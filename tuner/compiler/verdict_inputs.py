"""The inputs of a device's verdict on a config: its code, its compiler and the machine."""

from tuner.arch import GPU
from tuner.base.cache import Cache
from tuner.compiler.nvrtc import kept, made_by, toolkit
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.errors import MachineError
from tuner.results.proof import CheckedCode
from tuner.spec.instance import Instance


def checked_code(instance: Instance, gpu: GPU, driver: str, source: Source | None = None) -> CheckedCode:
    """The code of a config for a GPU with a driver (`backends.gpu.driver_name`), by the compiler of this machine.

    Without a compiler it is what a warm-up elsewhere left in the cache. Raises MachineError where there is neither.
    """
    source, options = source or render(instance), Options(gpu.arch.name)
    return CheckedCode(
        operator=instance.operator.name,
        implementation=instance.implementation.name,
        gpu=gpu.name,
        driver=driver,
        source=source.digest,
        options=str(options),
        toolkit=_toolkit(source, options),
    )


def _toolkit(source: Source, options: Options) -> str:
    """With the build: ptxas differs between builds of a version."""
    try:
        return f"{made_by(source)} {toolkit().build}"
    except MachineError:
        if cubin := kept(source, options, Cache.of("cubin")):
            return f"{cubin.toolkit} {cubin.toolkit.build}"
        raise
