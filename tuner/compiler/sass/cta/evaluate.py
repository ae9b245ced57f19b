"""Selection of the function that computes the results of an instruction."""

from collections.abc import Callable, Mapping

from tuner.compiler.sass.cta import integers, lanes, predicates
from tuner.compiler.sass.cta.operands import Line
from tuner.compiler.sass.cta.registers import Mask, Registers
from tuner.compiler.sass.cta.results import forget

Evaluate = Callable[[Line, Registers, Mask | None], None]


def evaluator(line: Line) -> Evaluate:
    """Return the function that computes an instruction's results; they are unknown unless it is integer arithmetic."""
    return _TABLE.get(line.name, forget)


_TABLE: Mapping[str, Evaluate] = {
    **dict.fromkeys(("MOV", "UMOV"), integers.mov),
    **dict.fromkeys(("IMAD", "UIMAD"), integers.imad),
    **dict.fromkeys(("IADD3", "UIADD3", "VIADD", "IADD"), integers.iadd3),
    **dict.fromkeys(("LEA", "ULEA"), integers.lea),
    **dict.fromkeys(("SHF", "USHF"), integers.shift),
    **dict.fromkeys(("LOP3", "ULOP3"), integers.lop3),
    **dict.fromkeys(("PLOP3", "UPLOP3"), predicates.plop3),
    **dict.fromkeys(("PRMT", "UPRMT"), integers.prmt),
    **dict.fromkeys(("SEL", "USEL"), predicates.select),
    **dict.fromkeys(("ISETP", "UISETP"), predicates.compare),
    **dict.fromkeys(("VIMNMX", "IMNMX", "VIADDMNMX"), integers.minimum),
    "IABS": integers.absolute,
    **dict.fromkeys(("POPC", "UPOPC", "FLO", "UFLO"), integers.count_bits),
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), lanes.load_constant),
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), lanes.special),
    "R2UR": lanes.to_uniform,
    "ELECT": lanes.elect,
    **dict.fromkeys(("VOTE", "VOTEU"), lanes.vote),
    "SHFL": lanes.shuffle,
    "P2R": predicates.from_flags,
    "R2P": predicates.to_flags,
    **dict.fromkeys(("I2F", "I2FP"), integers.float_of),
    "F2I": integers.integer_of,
    "MUFU": integers.reciprocal,
    "FMUL": integers.multiply,
    "USETMAXREG": lanes.allocate,
}
