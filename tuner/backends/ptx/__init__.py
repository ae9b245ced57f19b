"""The PTX interpreter: runs the compiler's PTX on the CPU. It follows the PTX ISA and is independent of the
emulator.
"""

from tuner.backends.ptx.launch import Shape, launch
from tuner.backends.ptx.run import Execution, run
from tuner.backends.ptx.state.memory import FaultError, Global
from tuner.backends.ptx.state.wave import ORDERS, Order
from tuner.backends.ptx.text.module import Entry, parse

__all__ = ["ORDERS", "Entry", "Execution", "FaultError", "Global", "Order", "Shape", "launch", "parse", "run"]
