"""The PTX interpreter: the compiler's PTX executed on the CPU, written from the PTX ISA, not from the emulator."""

from tuner.backends.ptx.launch import Shape, launch
from tuner.backends.ptx.run import Execution, run
from tuner.backends.ptx.state.memory import FaultError, Global
from tuner.backends.ptx.state.wave import ORDERS, Order
from tuner.backends.ptx.text.module import Entry, parse

__all__ = ["ORDERS", "Entry", "Execution", "FaultError", "Global", "Order", "Shape", "launch", "parse", "run"]
