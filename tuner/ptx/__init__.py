"""A machine that executes the compiler's PTX on the CPU, written from the PTX ISA and apart from the emulator."""

from tuner.ptx.launch import Shape, launch
from tuner.ptx.memory import FaultError, Global
from tuner.ptx.module import Entry, parse
from tuner.ptx.run import Run, run
from tuner.ptx.wave import ORDERS, Order

__all__ = ["ORDERS", "Entry", "FaultError", "Global", "Order", "Run", "Shape", "launch", "parse", "run"]
