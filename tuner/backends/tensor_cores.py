"""How tensor cores round sums of products, by instruction and architecture; both CPU backends follow it.

The model is MMA-Sim's T-FDPA (arXiv 2511.10909). One step adds an accumulator and the products of `step_bytes` of a row
of A. Each product is exact and keeps the sum of its operands' exponents, so its significand is below 4. All terms are
aligned to the largest exponent, cut toward zero below `fraction_bits` and added exactly. The sum is rounded once, to
fp32 toward zero and to fp16 to nearest even. A longer sum is a chain of steps.

For `mma.sync` with 16-bit and tf32 operands the model reproduces inner products that were measured on A100, L40S and
H100, and with 8-bit operands those of an L40S (tests/backends/test_tensor_cores.py). For `wgmma`, `tcgen05` and
other 8-bit operands there are no public measurements to compare with: there it is the published model and no more.
"""

from dataclasses import dataclass

from tuner.errors import UsageError


@dataclass(frozen=True, slots=True)
class SumRule:
    """The parameters of one step."""

    fraction_bits: int  # fraction bits kept per term, below the largest exponent
    step_bytes: int  # bytes of a row of A per step
    zero_exponent: int  # exponent of a zero term with fp32 results
    zero_exponent_fp16: int  # exponent of a zero term with fp16 results
    result_bits: int = 23  # fraction bits of an fp32 result

    def depth(self, element_bytes: int) -> int:
        """Return the number of products per step."""
        return self.step_bytes // element_bytes


_AMPERE = SumRule(24, 16, -132, -20)
_HOPPER = SumRule(25, 32, -133, -21)
_AMPERE_BYTES = SumRule(13, 16, -132, -20, result_bits=13)
_HOPPER_BYTES = SumRule(13, 32, -133, -21, result_bits=13)


def of_mma_sync(arch: str, element_bytes: int) -> SumRule:
    """Return the rule of `mma.sync` and `wmma` on an arch such as "sm_90a". Raises UsageError for an earlier arch.

    The published model does not cover 8-bit products on sm_90; measured results with a zero accumulator match wgmma's.
    """
    capability = int("".join(filter(str.isdigit, arch)) or 0)
    if capability < 75:
        raise UsageError(
            f"the tensor-core rounding of {arch or 'an unnamed arch'} is unknown: sm_75 and later are supported"
        )
    if capability < 90:
        return _AMPERE_BYTES if element_bytes == 1 else _AMPERE
    return _HOPPER_BYTES if element_bytes == 1 and capability == 90 else _HOPPER


def of_wgmma(element_bytes: int) -> SumRule:
    return _HOPPER_BYTES if element_bytes == 1 else _HOPPER


def of_tcgen05() -> SumRule:
    return _HOPPER
