"""Search flash attention for every head_dim, dtype, mask and architecture, and say what was found.

    python benchmarks/matrix.py [--budget 16] [--db FILE] [--json FILE] [--arch sm_80 …]

Each line is one search: its winner must be valid, spill-free and verified on the emulator. The tensor work column is
the winner's mma against the mathematics: head_dim 72 must cost 72. Searches that are stored are not repeated.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from tuner import arch, operators
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.check.verdict_cache import VerdictCache
from tuner.evaluate.predictor import Predictor
from tuner.search import study
from tuner.spec.dtype import DType
from tuner.spec.problem import from_fields
from tuner.store.sql import Store

HEAD_DIMS = (40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)
DTYPES = (DType.FP16, DType.BF16)
# Others are of the family of one of these, or of its design.
_ARCHES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
_EVEN = 2**10 * 3 * 5  # a length that every tile divides, so that only head_dim can cost extra


@dataclass(frozen=True)
class Line:
    """One search and its winner."""

    arch: str
    head_dim: int
    dtype: str
    causal: bool
    implementation: str
    config: str
    registers: int
    spill_bytes: int
    verified: bool
    tensor_ratio: float  # mma of the dense problem over the mathematics
    tried: int
    seconds: float

    @property
    def ok(self) -> bool:
        return self.verified and self.spill_bytes == 0 and abs(self.tensor_ratio - 1) < 1e-9


def main() -> int:
    options = _options()
    operator = operators.load("flash_attention")
    lines = []
    with Store.open(options.db) as store, Compiler() as compiler, Checker(known=VerdictCache.of_user()) as checker:
        for name, dtype, causal, head_dim in product(options.arch, DTYPES, (False, True), HEAD_DIMS):
            target = arch.gpu(name)
            problem = operator.problem(head_dim=head_dim, dtype=dtype, causal=causal)
            request = study.SearchRequest(operator, problem, target, budget=options.budget, implementation="mma_sync")
            started = time.monotonic()
            outcome = study.search(request, store, Predictor(target, compiler, checker))
            lines.append(_line(outcome, time.monotonic() - started))
            print(_text(lines[-1]), flush=True)
    bad = [line for line in lines if not line.ok]
    print(f"{len(lines) - len(bad)} of {len(lines)} searches found a verified, spill-free config with exact tiles")
    if options.json:
        options.json.write_text(json.dumps([vars(line) | {"ok": line.ok} for line in lines], indent=1) + "\n")
    return 1 if bad else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=16, help="tries a search")
    parser.add_argument("--db", default=None, help="database file; a stored search is not repeated")
    parser.add_argument("--json", type=Path, default=None, help="write the lines there")
    parser.add_argument("--arch", nargs="+", default=list(_ARCHES), choices=list(arch.ARCHES))
    return parser.parse_args()


def _line(outcome: study.Outcome, seconds: float) -> Line:
    request, record = outcome.request, outcome.record
    problem = request.problem
    common = (request.gpu.name, problem.head_dim, problem.dtype.value, problem.causal)
    if record is None:
        return Line(*common, "none", "", 0, 0, False, 0.0, len(outcome.tried), seconds)
    config = " ".join(f"{name}={value}" for name, value in record.config.items())
    used = record.resources
    return Line(
        *common,
        record.identity.implementation,
        config,
        used.registers,
        used.spill_bytes,
        record.verdict.ok,
        _tensor_ratio(outcome),
        len(outcome.tried),
        seconds,
    )


def _tensor_ratio(outcome: study.Outcome) -> float:
    """The winner's mma on a dense problem without ragged tiles, over the mathematics."""
    request, record = outcome.request, outcome.record
    assert record is not None
    implementation = operators.implementation(request.operator.name, record.identity.implementation)
    config = from_fields(implementation.config, record.config)
    dense = replace(request.problem, causal=False, seq_q=_EVEN, seq_k=_EVEN, batch=1)
    (work,) = implementation.work(dense, config, request.gpu)
    return work.mma * arch.MMA_FLOPS / request.operator.cost(dense).flops


def _text(line: Line) -> str:
    mask = "causal" if line.causal else "dense"
    found = f"{line.implementation} {line.config} · {line.registers} registers, {line.spill_bytes} B spilled"
    mark = "ok " if line.ok else "BAD"
    cost = f"{line.head_dim} costs {line.head_dim * line.tensor_ratio:g}"
    return f"{mark} {line.arch} D={line.head_dim} {line.dtype} {mask}: {found} · {cost} · {line.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
