"""The precision of matrix products: the operand class of the templates, and the sizes and counts that follow."""

from dataclasses import dataclass

from .problem import Problem


@dataclass(frozen=True, slots=True)
class Operands:
    cuda: str  # the class of the templates
    nbytes: int  # bytes per element in shared memory and in images
    step: int  # elements of the contraction per mma
    products: int  # products per pair of tiles, which are summed
    registers: int  # registers of one operand A

    def tf32(self, mma: float) -> float:
        """The number of a launch's products that have tf32 operands: none or all, since fp32 is split into several tf32
        terms."""
        return mma if self.nbytes == 4 else 0.0


BF16 = Operands("Bf16Operands", 2, 16, 1, 4)
TF32 = Operands("Tf32Operands<false>", 4, 8, 1, 4)
FP32 = Operands("Tf32Operands<true>", 4, 8, 3, 8)


def operands_of(problem: Problem) -> Operands:
    return {"bf16": BF16, "tf32": TF32, "fp32": FP32}[problem.operands]


def column_stride(nbytes: int) -> int:
    """Bytes of a row of `nbytes` whose columns warps read: padded to an odd multiple of 32 bytes."""
    return 32 * (nbytes // 32 | 1)
