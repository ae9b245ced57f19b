"""Fields of an instruction for sm_80 to sm_120: their positions among its 128 bits, and their meaning.

Learnt, as the opcodes of `sass`, from what nvdisasm 13.5 prints for kernels compiled for every arch.
"""

BYTES = 16  # bytes per instruction
TRUE, NEVER = 7, 15  # guards that are always true, and never
_NO_BARRIER = 7  # value of HGMMA's barrier field, which the last HGMMA of a group sets, without a barrier
_ACCESSES = (8, 8, 16, 16, 32, 64, 128, 128)
_FUNCTIONS = ("COS", "SIN", "EX2", "LG2", "RCP", "RSQ", "RCP64H", "RSQ64H", "SQRT", "TANH")


def bits(word: int, low: int, count: int) -> int:
    """Return a field of `count` bits."""
    return word >> low & (1 << count) - 1


def opcode(word: int) -> int:
    return bits(word, 0, 9)


def guard(word: int) -> int:
    """Return the guard's predicate register; its fourth bit is the negation."""
    return bits(word, 12, 4)


def destination(word: int) -> int:
    """Return the first destination register."""
    return bits(word, 16, 8)


def access_bits(word: int, at: int = 73) -> int:
    """Return the access width in bits per thread."""
    return _ACCESSES[bits(word, at, 3)]


def matrices(word: int) -> int:
    """Return the number of matrices of LDSM or STSM: 1, 2 or 4."""
    return 1 << bits(word, 72, 2)


def function(word: int) -> str:
    """Return the function of MUFU."""
    number = bits(word, 74, 4)
    return _FUNCTIONS[number] if number < len(_FUNCTIONS) else f"F{number}"


def hmma_shape(word: int) -> str:
    return {0: "1688", 1: "16816", 2: "1684", 3: "16832"}[bits(word, 75, 1) + 2 * bits(word, 78, 1)]


def hgmma_columns(word: int) -> int:
    """Return n of an HGMMA's m64nNk16."""
    return 8 * (bits(word, 53, 5) + 1)


def ends_group(word: int) -> bool:
    """Return whether an HGMMA is the last one of a group."""
    return bits(word, 84, 3) != _NO_BARRIER


def waits_for_groups(word: int) -> bool:
    """Return whether WARPGROUP is .DEPBAR instead of .ARRIVE."""
    return bool(bits(word, 47, 1))


def groups_left(word: int) -> int:
    """Return the number of groups that WARPGROUP.DEPBAR leaves in flight."""
    return bits(word, 72, 6)


def copies_left(word: int) -> int:
    """Return the number of copies that DEPBAR allows to be in flight."""
    return bits(word, 38, 6)
