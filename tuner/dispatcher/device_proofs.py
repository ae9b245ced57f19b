"""Stored verdicts of this machine's GPU on default configs (`tuner prove`)."""

from tuner import operators
from tuner.arch import GPU
from tuner.backends import gpu
from tuner.compiler.verdict_inputs import checked_code
from tuner.errors import MachineError
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

WRONG = "the GPU here was found to run its default config wrong: `tuner prove --retry` looks again"


class Verdicts:
    """The verdicts on an operator's default configs on a GPU; empty if that GPU is not in this machine.

    A verdict is valid for a driver, a compiler and a source. If none is stored, nothing is rendered.
    """

    def __init__(self, operator: str, target: GPU, snapshot: Snapshot) -> None:
        stored = snapshot.proofs(operator, target.name)
        self._driver = gpu.driver_name() if stored and gpu.is_here(target) else ""
        self._stored = {code: ok for code, ok in stored.items() if code.driver == self._driver}
        self._names = {code.implementation for code in self._stored}
        self._target, self._operator = target, operator

    def __str__(self) -> str:
        return f"driver for CUDA {self._driver}"

    @property
    def found_unproven_right(self) -> bool:
        """Return whether this device found any unproven implementation to be correct."""
        return any(ok and self._is_unproven(code.implementation) for code, ok in self._stored.items())

    def _is_unproven(self, name: str) -> bool:
        return any(one.unproven for one in operators.implementations(self._operator) if one.name == name)

    def right(self, instance: Instance) -> bool | None:
        """Return whether a config's code is correct; None if unknown."""
        if instance.implementation.name not in self._names:
            return None
        try:
            return self._stored.get(checked_code(instance, self._target, self._driver))
        except MachineError:  # without a compiler or a cubin, the code that would run is unknown
            return None
