"""The ctypes interface of the runtime library: its functions, and the structures that it shares with Python."""

import ctypes
import re
import subprocess
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from tuner.backends.emulator.build import runtime_library
from tuner.backends.tensor_cores import SumRule
from tuner.base.fork import ForkGuard


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a launch or of a block, per warp instruction. Bytes of plain accesses are counted in checked mode
    only.
    """

    mma_m16n8k16: int
    mma_m16n8k8: int
    mma_m16n8k8_tf32: int
    wgmma: int  # one per warp of the warpgroup
    wgmma_m16n8k16: int  # their products, in units of m16n8k16
    tcgen05_m16n8k16: int  # the same for tcgen05
    tensor_columns: int  # allocated columns of tensor memory
    tensor_bytes: int  # traffic between tensor memory and registers
    claimed_registers: int  # requested by setmaxnreg, summed over threads
    ldmatrix: int  # number of 8x8 matrices
    stmatrix: int
    bank_conflicts: int  # wavefronts beyond the minimum
    shuffles: int
    syncwarps: int
    barriers: int
    cp_async_bytes: int
    bulk_bytes: int
    cluster_bytes: int
    global_read_bytes: int
    global_write_bytes: int
    shared_read_bytes: int
    shared_write_bytes: int
    atomics: int
    switches: int  # switches between fibers, the emulator's own overhead

    @property
    def mma(self) -> float:
        """Matrix products in units of m16n8k16; an m16n8k8 is half of one."""
        whole = self.mma_m16n8k16 + self.wgmma_m16n8k16 + self.tcgen05_m16n8k16
        return whole + (self.mma_m16n8k8 + self.mma_m16n8k8_tf32) / 2


class CIndex(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


class CSumRule(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("fraction_bits", "step_bytes", "zero_exponent")]

    @classmethod
    def of(cls, rule: SumRule) -> "CSumRule":
        return cls(rule.fraction_bits, rule.step_bytes, rule.zero_exponent)


class COptions(ctypes.Structure):
    _fields_ = [
        ("schedule", ctypes.c_int32),
        ("timing", ctypes.c_int32),
        ("checked", ctypes.c_int32),
        ("mma_sync", CSumRule),
        ("wgmma", CSumRule),
        ("tcgen05", CSumRule),
        ("seed", ctypes.c_uint64),
        ("most_seconds", ctypes.c_double),
    ]


class CFinding(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_char_p),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_int32),
        ("other_thread", ctypes.c_int32),
        ("site", ctypes.c_uint64),
        ("other_site", ctypes.c_uint64),
        ("buffer", ctypes.c_char * 32),
        ("offset", ctypes.c_int64),
        ("count", ctypes.c_uint64),
        ("message", ctypes.c_char * 256),
    ]


class CCounters(ctypes.Structure):
    _fields_ = [(field.name, ctypes.c_uint64) for field in fields(Counters)]

    def value(self) -> Counters:
        return Counters(*(getattr(self, field.name) for field in fields(Counters)))


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_SIGNATURES = {
    "emulator_allocate": (_POINTER, ctypes.c_size_t, ctypes.c_char_p, _INT, _INT, _INT),
    "emulator_free": (None, _POINTER),
    "emulator_open": (_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
    "emulator_symbol": (_POINTER, _POINTER, ctypes.c_char_p),
    "emulator_close": (None, _POINTER),
    "emulator_offset": (ctypes.c_uint64, _POINTER, ctypes.c_char_p, ctypes.c_size_t),
    "emulator_launch": (
        None,
        _POINTER,
        _POINTER,
        ctypes.POINTER(CIndex),
        ctypes.POINTER(CIndex),
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.POINTER(COptions),
    ),
    "emulator_findings": (ctypes.POINTER(CFinding), ctypes.POINTER(_INT)),
    "emulator_counters": (ctypes.POINTER(CCounters),),
    "emulator_block_counters": (ctypes.POINTER(CCounters),),
}


# The runtime has one state per process: callers hold this lock.
EXCLUSIVE = ForkGuard("used the emulator")


@cache
def runtime() -> ctypes.CDLL:
    """Return the runtime library, built if necessary."""
    # Kernels resolve its symbols in the global scope.
    library = ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_LINE_SHIFT = 48  # a site is a line number above the address of a file name; with line 0, an instruction address


def location_of(site: int) -> str:
    """Return `file:line` of a site; empty if unknown."""
    line, address = site >> _LINE_SHIFT, site & (1 << _LINE_SHIFT) - 1
    if not address:
        return ""
    if line:
        return f"{Path(ctypes.string_at(address).decode(errors='replace')).name}:{line}"
    path = ctypes.create_string_buffer(4096)
    offset = runtime().emulator_offset(address, path, len(path))
    # A return address points just past the access.
    return _source_line(path.value.decode(), offset - 1) if offset else ""


_PRIMITIVES = re.compile(r"\.(?:partial|folder)/")  # names of precompiled headers in the cache


@cache
def _source_line(path: str, offset: int) -> str:
    """Return the source line of an instruction of a checked kernel: the innermost one outside the primitives."""
    command = ["addr2line", "-i", "-e", path, hex(offset)]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    except OSError:
        return f"+{offset:#x}"  # without binutils, the offset serves for a disassembler
    frames = [line.split(" ")[0] for line in lines if line and "?" not in line]
    own = [frame for frame in frames if not _PRIMITIVES.search(frame)] or frames
    return Path(own[0]).name if own else f"+{offset:#x}"
