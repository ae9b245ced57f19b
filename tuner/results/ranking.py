"""The order in which attempts that work are ranked, and how ties are broken."""

from tuner.base.canonical import encode
from tuner.results.attempt import Attempt


def order(attempt: Attempt, value: float) -> tuple[bool, float, int, str]:
    """The sort key of attempts that work, best first: what has flaws, such as spills, stands behind; ties go to the
    least shared memory.
    """
    smem_bytes = attempt.resources.smem_bytes if attempt.resources else 0
    return attempt.flawed, value, smem_bytes, attempt.identity.implementation + encode(attempt.config)
