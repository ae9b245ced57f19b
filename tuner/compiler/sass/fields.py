"""Fields of an instruction for sm_80 to sm_120: their positions among its 128 bits, and their meaning.

Learnt, as the opcodes of `sass`, from what nvdisasm 13.5 prints for kernels compiled for every arch.
"""

BYTES = 16  # an instruction
TRUE, NEVER = 7, 15  # guards that always hold, and never
_NO_BARRIER = 7  # of HGMMA's field for the barrier that the last one of a group names
_ACCESSES = (8, 8, 16, 16, 32, 64, 128, 128)
_FUNCTIONS = ("COS", "SIN", "EX2", "LG2", "RCP", "RSQ", "RCP64H", "RSQ64H", "SQRT", "TANH")


def bits(word: int, low: int, count: int) -> int:
    """A field of `count` bits."""
    return word >> low & (1 << count) - 1


def opcode(word: int) -> int:
    return bits(word, 0, 9)


def guard(word: int) -> int:
    """The predicate register that has to hold, and at its fourth bit whether it is negated."""
    return bits(word, 12, 4)


def destination(word: int) -> int:
    """The first register that it writes."""
    return bits(word, 16, 8)


def access_bits(word: int, at: int = 73) -> int:
    """What a thread loads or stores."""
    return _ACCESSES[bits(word, at, 3)]


def matrices(word: int) -> int:
    """Of LDSM and STSM: 1, 2 or 4."""
    return 1 << bits(word, 72, 2)


def function(word: int) -> str:
    """Of MUFU."""
    number = bits(word, 74, 4)
    return _FUNCTIONS[number] if number < len(_FUNCTIONS) else f"F{number}"


def hmma_shape(word: int) -> str:
    return {0: "1688", 1: "16816", 2: "1684", 3: "16832"}[bits(word, 75, 1) + 2 * bits(word, 78, 1)]


def hgmma_columns(word: int) -> int:
    """n of its m64nNk16."""
    return 8 * (bits(word, 53, 5) + 1)


def ends_group(word: int) -> bool:
    """Of HGMMA: whether it is the last one of a group."""
    return bits(word, 84, 3) != _NO_BARRIER


def waits_for_groups(word: int) -> bool:
    """Of WARPGROUP: whether it is .DEPBAR, not .ARRIVE."""
    return bool(bits(word, 47, 1))


def groups_left(word: int) -> int:
    """Of WARPGROUP.DEPBAR: how many groups it leaves in flight."""
    return bits(word, 72, 6)


def copies_left(word: int) -> int:
    """Of DEPBAR: what the counter of copies that it waits for may still hold."""
    return bits(word, 38, 6)
