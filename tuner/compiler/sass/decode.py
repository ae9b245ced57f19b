"""Machine code by class of instruction, decoded without tools for sm_80 to sm_120; its text through nvdisasm.

An instruction is 128 bits: the opcode is the lowest nine, the form of its operands the next three. The opcodes were
learnt from what nvdisasm 13.5 prints for kernels compiled for every arch, and a test compares the two again.
"""

import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.compiler.sass import fields
from tuner.compiler.sass.fields import BYTES, TRUE, bits
from tuner.errors import MachineError

_DIVERGED = 91  # the bit of a branch that is taken only where lanes have diverged: BRA.DIV

# Class of work, then mnemonics with their opcodes. What is not listed counts as OTHER.
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
alu     FSEL 008 FSETP 00b F2FP 03e F2F 110 F2I 105 I2F 106 112 I2FP 045 FRND 107 FCHK 102 VIMNMX3 00f
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
PACKED = frozenset({"FFMA2", "FADD2", "FMUL2"})  # in fp32, two a lane: the pipe takes as long as for two instructions


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
    """One instruction: its 128 bits, its mnemonic, and the index that it branches to (None: no branch)."""

    word: int
    mnemonic: str
    target: int | None

    @property
    def always(self) -> bool:
        """Whether it is executed whenever it is reached: by the guard, and by a branch's own condition."""
        taken = self.target is None or (bits(self.word, 87, 4) == TRUE and not bits(self.word, _DIVERGED, 1))
        return fields.guard(self.word) == TRUE and taken


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop: the instructions from a backward branch's target to the branch. Byte offsets in the code."""

    start: int
    stop: int  # of the branch itself
    mix: Mapping[str, int]


def instruction_mix(code: bytes, arch: str) -> Mapping[str, int]:
    """How often each instruction stands in machine code of `arch`, such as {"HMMA.16816": 64, "LDS.128": 8}.

    Counts are static. Names are SASS mnemonics, with the shape of a matrix product, the bits of a memory access a
    thread, the matrices of LDSM and STSM (`x4`), the function of MUFU. NOPs, which pad the end, are left out.
    """
    return mix_of(_words(code), arch)


def mix_of(words: Iterable[int], arch: str) -> Mapping[str, int]:
    """The same of instructions one by one, each its 128 bits."""
    names = (_name(word, _generation(arch)) for word in words)
    return Counter(name for name in names if name != "NOP")


def decode(code: bytes, arch: str) -> tuple[Instruction, ...]:
    """Machine code of `arch`, instruction by instruction."""
    generation = _generation(arch)
    targets = {at // BYTES: to // BYTES for at, to in _branches(code, generation)}
    names = ((word, _name(word, generation).partition(".")[0]) for word in _words(code))
    return tuple(Instruction(word, name, targets.get(index)) for index, (word, name) in enumerate(names))


def successors(code: Sequence[Instruction], index: int) -> tuple[int, ...]:
    """Indices of what may be executed after an instruction, the next one first; a call is taken to come back."""
    each = code[index]
    leaves = each.always and (each.target is not None or each.mnemonic in ("EXIT", "RET"))
    following = () if leaves or index + 1 == len(code) else (index + 1,)
    return following if each.target is None else (*following, each.target)


def holds(code: bytes, mnemonic: str) -> bool:
    """Whether machine code has an instruction of that name, found without decoding the others."""
    return next(_places(code, mnemonic), None) is not None


def innermost_loops(code: bytes, arch: str) -> tuple[Loop, ...]:
    """Loops that hold no other loop, in the order of their code."""
    back_edges = [(to, at) for at, to in _branches(code, _generation(arch)) if to < at]
    inner = [edge for edge in back_edges if not any(_inside(other, edge) for other in back_edges)]
    return tuple(Loop(to, at, instruction_mix(code[to : at + BYTES], arch)) for to, at in sorted(inner))


def span(code: bytes, loop: Loop) -> bytes:
    """The loop's own part of the code, its branch included."""
    return code[loop.start : loop.stop + BYTES]


def work_mix(mix: Mapping[str, int]) -> Mapping[str, float]:
    """A mix by class: `mma` in units of m16n8k16, `fma` of 32 lanes, and `mufu`, `alu`, `shared`, `copy`, `local` …

    `paired` says how many of `fma` are two to an instruction.
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
    """The wheel's nvdisasm before the one on PATH, which may be older than NVRTC."""
    found = _with_wheel() or shutil.which("nvdisasm")
    if found is None:
        raise MachineError("no nvdisasm: pip install 'kerntune[sass]', or put a CUDA toolkit's bin folder on PATH")
    return found


def _with_wheel() -> str | None:
    from importlib import metadata  # a sixth of the start of a process that compiles

    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        return None
    places = (file.locate() for file in files if file.name in ("nvdisasm", "nvdisasm.exe"))
    return next((str(path) for path in places if Path(path).is_file()), None)


def _generation(arch: str) -> int:
    """8, 9, 10 or 12: the compute capability's tens. Instructions of sm_110a are those of sm_100a."""
    tens = int(re.sub(r"\D", "", arch)) // 10
    return 10 if tens == 11 else tens


def _words(code: bytes) -> Iterator[int]:
    return (int.from_bytes(code[at : at + BYTES], "little") for at in range(0, len(code), BYTES))


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
    """Multiply-adds of a matrix instruction over those of m16n8k16; 2 for packed arithmetic, 1 for everything else."""
    base, _, shape = name.partition(".")
    if base == "HGMMA":
        n, k = (int(side) for side in shape.split("x")[1:])
        return 64 * n * k / (16 * 8 * 16)
    return {"1688": 0.5, "1684": 0.25}.get(shape, 1.0) if base == "HMMA" else 2.0 if base in PACKED else 1.0


def _branches(code: bytes, generation: int) -> Iterator[tuple[int, int]]:
    """(offset, target's offset) of each branch."""
    for at in _places(code, "BRA"):
        word = int.from_bytes(code[at : at + BYTES], "little")
        yield at, at + BYTES + _branch_distance(word, generation)


def _places(code: bytes, mnemonic: str) -> Iterator[int]:
    """Offsets of the instructions of that name, found without decoding the others."""
    opcodes = {opcode for opcode, name in _OPCODES.items() if name == mnemonic}
    lowest = zip(code[::BYTES], code[1::BYTES], strict=True)
    return (index * BYTES for index, (low, high) in enumerate(lowest) if low | (high & 1) << 8 in opcodes)


def _branch_distance(word: int, generation: int) -> int:
    """Bytes from the next instruction: 50 bits up to sm_89; in fours, split in two fields, from sm_90 on."""
    if generation < 9:
        return _signed(bits(word, 32, 50), 50)
    return 4 * _signed(bits(word, 34, 48) << 8 | bits(word, 16, 8), 56)


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> width - 1 else value


def _inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]
