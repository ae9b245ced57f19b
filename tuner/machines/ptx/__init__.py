"""A machine that executes the compiler's PTX on the CPU, written from the PTX ISA and apart from the emulator."""

from tuner.machines.ptx.launch import Shape, launch
from tuner.machines.ptx.run import Execution, run
from tuner.machines.ptx.state.memory import FaultError, Global
from tuner.machines.ptx.state.wave import ORDERS, Order
from tuner.machines.ptx.text.module import Entry, parse

__all__ = ["ORDERS", "Entry", "Execution", "FaultError", "Global", "Order", "Shape", "launch", "parse", "run"]
