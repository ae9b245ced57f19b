"""Decodes machine code (SASS) of sm_80 to sm_120 without tools, and classifies its instructions; text through nvdisasm.

An instruction is 128 bits: the opcode is the lowest nine, the form of its operands the next three. The opcodes come
from the listings that nvdisasm 13.5 prints of kernels compiled for every arch; a test compares the two.
"""

import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.compiler.sass import fields
from tuner.compiler.sass.fields import BYTES, TRUE, bits
from tuner.errors import MachineError

_DIVERGED = 91  # bit of BRA.DIV, which branches only if lanes have diverged

# Class of work, then mnemonics with their opcodes. Other opcodes are named OTHER.
_TABLE = """
mma     HMMA 03c IMMA 037 DMMA 03f QMMA 07a HGMMA 1f0 QGMMA 1f3
tcgen05 UTCHMMA 1ea UTCBAR 1e9
fma     FFMA 023 FMUL 020 FADD 021 FMNMX 009 FMNMX3 076 FFMA2 049 FADD2 04b HFMA2 031 HADD2 030 HMUL2 032 HMNMX2 040
double  DFMA 02b DMUL 028 DADD 029 DSETP 02a
mufu    MUFU 108
shared  LDS 184 STS 188 LDSM 03b STSM 044 ATOMS 18c 18d
copy    LDGSTS 1ae UTMALDG 1b4 UTMASTG 1b5 UBLKCP 1ba UBLKRED 1bb
global  LDG 181 STG 186 RED 18e 1a6 ATOMG 1a3 1a8 1a9
generic LD 180 ST 185 ATOM 18a 18b 1a2 QSPC 1aa
local   LDL 183 STL 187
tmem    LDTM 1ee STTM 1ed UTCATOMSWS 1e3
const   LDC 182 ULDC 0b9 LDCU 1ac
alu     FSEL 008 FSETP 00b F2FP 03e F2F 110 F2I 105 111 I2F 106 112 I2FP 045 FRND 107 113 FCHK 102 VIMNMX3 00f
alu     IADD3 010 IMAD 024 025 027 VIADD 036 LEA 011 LOP3 012 SHF 019 PRMT 016 SEL 007 MOV 002 CS2R 005 IABS 013
alu     ISETP 00c IMNMX 017 VIMNMX 048 VIADDMNMX 046 PLOP3 01c P2R 003 R2P 004 POPC 109 FLO 100 BREV 101 S2R 119
uniform S2UR 1c3 R2UR 0ca 1c2 UMOV 082 UIADD3 090 097 UIMAD 0a4 0a5 ULEA 091 ULOP3 092 USHF 099
uniform UISETP 08c USEL 087 UFLO 0bd
lanes   SHFL 189 VOTE 006 VOTEU 086 REDUX 1c4 MATCH 1a1 MOVM 03a ELECT 02f
order   BAR 11d SYNCS 1a7 1b2 DEPBAR 11a LDGDEPBAR 1af MEMBAR 192 WARPGROUP 1c5 WARPSYNC 148 USETMAXREG 1c8
control BRA 147 EXIT 14d CALL 143 144 RET 150 BSSY 145 BSYNC 141 BMOV 155 156
padding NOP 118
"""
_REUSED = {  # opcodes that mean different things, by the compute capability's tens
    8: {0x035: "HFMA2"},
    9: {0x035: "HFMA2"},
    10: {0x04A: "FMUL2", 0x035: "IADD"},
    12: {0x035: "IADD"},
}
_REUSED_CLASSES = {"FMUL2": "fma", "IADD": "alu"}
PACKED = frozenset({"FFMA2", "FADD2", "FMUL2"})  # two fp32 operations per lane; they occupy the pipe twice as long


def _read_table() -> tuple[dict[int, str], dict[str, str]]:
    opcodes: dict[int, str] = {}
    classes = dict(_REUSED_CLASSES)
    for line in _TABLE.strip().split("\n"):
        kind, mnemonics = line.split(maxsplit=1)
        for name, codes in re.findall(r"([A-Z]\w*)((?: [01]\w\w)+)", mnemonics):
            classes[name] = kind
            opcodes |= {int(code, 16): name for code in codes.split()}
    return opcodes, classes


_OPCODES, _CLASSES = _read_table()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its 128 bits, its mnemonic, and the index of its branch target (None: no branch)."""

    word: int
    name: str  # with the shape of a product, the bits of an access per thread, …: "HMMA.16816", "LDS.128"
    mnemonic: str
    target: int | None

    @property
    def always(self) -> bool:
        """Whether its guard, and a branch's own condition, always hold."""
        taken = self.target is None or (bits(self.word, 87, 4) == TRUE and not bits(self.word, _DIVERGED, 1))
        return fields.guard(self.word) == TRUE and taken


@dataclass(frozen=True, slots=True)
class InnermostLoop:
    """The instructions from the target of a backward branch to the branch, by index, and their static counts."""

    indices: range
    mix: Mapping[str, int]


def decode(code: bytes, arch: str) -> tuple[Instruction, ...]:
    """Machine code of `arch`, instruction by instruction."""
    tens = int(re.sub(r"\D", "", arch)) // 10
    generation = 10 if tens == 11 else tens  # instructions of sm_110a are those of sm_100a
    words = [int.from_bytes(code[at : at + BYTES], "little") for at in range(0, len(code), BYTES)]
    return tuple(_instruction(index, word, generation) for index, word in enumerate(words))


def _instruction(index: int, word: int, generation: int) -> Instruction:
    name = _name(word, generation)
    mnemonic = name.partition(".")[0]
    target = index + 1 + _branch_distance(word, generation) // BYTES if mnemonic == "BRA" else None
    return Instruction(word, name, mnemonic, target)


def instruction_mix(code: Iterable[Instruction]) -> Mapping[str, int]:
    """Static counts by name, such as {"HMMA.16816": 64, "LDS.128": 8}. NOPs, which pad the end, are left out."""
    return Counter(instruction.name for instruction in code if instruction.name != "NOP")


def successors(code: Sequence[Instruction], index: int) -> tuple[int, ...]:
    """Indices of the instructions that may follow, the next one first; a call is assumed to return."""
    instruction, target = code[index], code[index].target
    leaves = instruction.always and (target is not None or instruction.mnemonic in ("EXIT", "RET"))
    following = () if leaves or index + 1 == len(code) else (index + 1,)
    return following if target is None else (*following, target)


def innermost_loops(code: Sequence[Instruction]) -> tuple[InnermostLoop, ...]:
    """Loops that contain no other loop, in the order of the code."""
    targets = enumerate(instruction.target for instruction in code)
    spans = [(first, last) for last, first in targets if first is not None and first < last]
    inner = [a for a in spans if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return tuple(
        InnermostLoop(range(first, last + 1), instruction_mix(code[first : last + 1])) for first, last in sorted(inner)
    )


def work_mix(mix: Mapping[str, int]) -> Mapping[str, float]:
    """Counts by class: `mma` in units of m16n8k16, `fma` of 32 lanes, and `mufu`, `alu`, `shared`, `copy`, `local` …

    `paired` is the part of `fma` that packed instructions do, two at a time.
    """
    total: defaultdict[str, float] = defaultdict(float)
    for name, count in mix.items():
        total[_CLASSES.get(name.partition(".")[0], "other")] += count * _units(name)
        if name in PACKED:
            total["paired"] += count * _units(name)
    return dict(total)


def disassemble(image: bytes) -> Mapping[str, str]:
    """SASS by kernel as nvdisasm prints it. Raises MachineError where nvdisasm is missing or fails."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run([nvdisasm(), "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"nvdisasm failed ({done.returncode}): {done.stderr.strip()}; install one as new as NVRTC")
    _, *parts = re.split(r"^//-+ (\S+) +-+\n", done.stdout, flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {name.removeprefix(".text."): text for name, text in pairs if name.startswith(".text.")}


def nvdisasm() -> str:
    """Path of nvdisasm: the wheel's, else the one on PATH, which may be older than NVRTC."""
    path = _from_wheel() or shutil.which("nvdisasm")
    if path is None:
        raise MachineError("no nvdisasm: pip install 'kerntune[sass]', or put a CUDA toolkit's bin folder on PATH")
    return path


def _from_wheel() -> str | None:
    from importlib import metadata  # importing it takes a sixth of the start-up of a compile worker

    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        return None
    paths = (file.locate() for file in files if file.name in ("nvdisasm", "nvdisasm.exe"))
    return next((str(path) for path in paths if Path(path).is_file()), None)


def _name(word: int, generation: int) -> str:
    opcode = fields.opcode(word)
    base = _REUSED.get(generation, {}).get(opcode) or _OPCODES.get(opcode, "OTHER")
    if base == "LDGSTS":
        return f"{base}.{fields.access_bits(word, 73 if generation < 10 else 74)}"
    modifier = _MODIFIERS.get(base)
    return f"{base}.{modifier(word)}" if modifier else base


def _hgmma_shape(word: int) -> str:
    depth = 8 if bits(word, 77, 1) else 16  # tf32, or 16-bit inputs
    return f"64x{fields.hgmma_columns(word)}x{depth}"


def _matrices(word: int) -> str:
    return f"x{fields.matrices(word)}"


_MODIFIERS: Mapping[str, Callable[[int], str | int]] = {
    "HMMA": fields.hmma_shape,
    "HGMMA": _hgmma_shape,
    "LDSM": _matrices,
    "STSM": _matrices,
    "MUFU": fields.function,
    **dict.fromkeys(("LDS", "STS", "LDG", "STG", "LDL", "STL", "LD", "ST"), fields.access_bits),
}


def _units(name: str) -> float:
    """Multiply-adds of a matrix instruction relative to m16n8k16; 2 for packed arithmetic, 1 for all others."""
    base, _, shape = name.partition(".")
    if base == "HGMMA":
        n, k = (int(side) for side in shape.split("x")[1:])
        return 64 * n * k / (16 * 8 * 16)
    return {"1688": 0.5, "1684": 0.25}.get(shape, 1.0) if base == "HMMA" else 2.0 if base in PACKED else 1.0


def _branch_distance(word: int, generation: int) -> int:
    """Bytes from the next instruction: 50 bits up to sm_89; from sm_90 on in units of 4, split over two fields."""
    if generation < 9:
        return _signed(bits(word, 32, 50), 50)
    return 4 * _signed(bits(word, 34, 48) << 8 | bits(word, 16, 8), 56)


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> width - 1 else value
