"""Everything that needs a GPU, in one command and a given time: facts, verification, searches, peers, tuned records.

    python benchmarks/gpu.py --minutes 8 --out reports/out/gpu            on a machine with a GPU
    python benchmarks/gpu.py --minutes 2 --out … --small                  the same, with small problems and few tries
    python benchmarks/gpu.py --minutes 2 --out … --simulate               … and on a device that is not there

Steps are ordered by what they tell: after verification every operator gets one search and one comparison, and only then
more shapes. What is known is written as it comes (results.json, log.txt, tuned/, peers/, report.html); a second call
with the same --out goes on where the first was stopped.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_steps as steps
from gpu_run import Run

from tuner import bench, operators, peers
from tuner.errors import TunerError
from tuner.operator import to_fields

# What is searched, by operator; a field that is left out has its default. The first of every operator goes first.
PROBLEMS: dict[str, tuple[dict[str, Any], ...]] = {
    "flash_attention": (
        {"head_dim": 128, "causal": True, "seq_q": 8192},
        {"head_dim": 72, "causal": True, "seq_q": 8192},
        {"batch": 16, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 8192},  # a step of decoding
        *({"head_dim": head_dim, "causal": True, "seq_q": 8192} for head_dim in (64, 80, 96)),
        *({"head_dim": head_dim, "seq_q": 8192} for head_dim in (128, 72, 64, 80, 96)),
    ),
    "flash_attention_backward": ({"causal": True, "seq_q": 8192}, {"head_dim": 72, "causal": True, "seq_q": 8192}),
    "kda": ({}, {"batch": 2, "heads": 16, "seq_len": 4096, "key_dim": 64, "value_dim": 64}),
    "linear_attention": ({}, {"batch": 2, "heads": 16, "seq_len": 4096, "head_dim": 64}),
    "paged_attention": ({}, {"batch": 1, "max_pages": 2048}, {"batch": 64, "head_dim": 64, "heads": 16}),
    "streaming_attention": (
        {"seq_q": 32768},
        {"batch": 32, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 32768, "rolling": True},
    ),
}
SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "flash_attention": ({"head_dim": 16, "batch": 1, "heads": 2, "seq_q": 256},),
    "flash_attention_backward": ({"head_dim": 16, "batch": 1, "heads": 2, "seq_q": 128},),
    "kda": ({"key_dim": 16, "value_dim": 16, "heads": 2, "seq_len": 64},),
    "kda_backward": ({"key_dim": 16, "value_dim": 16, "heads": 2, "seq_len": 64},),
    "linear_attention": ({"head_dim": 16, "heads": 2, "seq_len": 64},),
    "linear_attention_backward": ({"head_dim": 16, "heads": 2, "seq_len": 64},),
    "paged_attention": ({"head_dim": 16, "batch": 2, "heads": 2, "kv_heads": 1, "max_pages": 4},),
    "streaming_attention": ({"head_dim": 16, "heads": 2, "seq_q": 128, "window": 32},),
    "streaming_attention_backward": ({"head_dim": 16, "heads": 2, "seq_q": 128, "window": 32},),
}
SWEEP = tuple({"seq_q": 2**n} for n in range(10, 18))  # of streaming_attention, against dense attention
KINDS = {"kda": ("weak_gate",)}  # of inputs, besides an operator's first, where times may depend on them
# Shares of the time by whose end a phase is to be over; one that is quicker leaves its rest to the next.
_CONFORMED, _SEARCHED, _COMPARED = 0.15, 0.5, 0.9
_MORE_SEARCHING = 0.6  # of the time for a further shape; its comparison has the rest


def problems(run: Run, only: list[str]) -> Iterator[list[tuple[Any, Any]]]:
    """(operator, problem): the first of every operator, then the second …"""
    listed = SMALL if run.small else PROBLEMS | {n: ({},) for n in operators.names() if n not in PROBLEMS}
    chosen = {name: found for name, found in listed.items() if name in (only or operators.names())}
    for turn in range(max(map(len, chosen.values()), default=0)):
        yield [
            (operator, operator.problem(**found[turn]))
            for name, found in chosen.items()
            if turn < len(found)
            for operator in [operators.load(name)]
        ]


def everything(run: Run, only: list[str]) -> None:
    first, *more = list(problems(run, only))
    run.step("device", lambda: steps.device(run))
    prove(run, first)
    for i, (operator, problem) in enumerate(first):
        search(run, operator, problem, max(run.until(_SEARCHED), 0) / (len(first) - i))
    for i, (operator, problem) in enumerate(first):
        share = patience(operator) / sum(patience(other) for other, _ in first[i:])
        compare(run, operator, problem, operator.input_kinds[0], share * max(run.until(_COMPARED), 0))
    for operator, problem in first:
        for kind in KINDS.get(operator.name, ()):
            compare(run, operator, problem, kind, run.left_s / 2)
    if not run.simulate:
        for operator, problem in first:
            verify_dtypes(run, operator, problem)
    rest = [each for turn in more for each in turn]
    for i, (operator, problem) in enumerate(rest):
        share = max(run.left_s, 0) / (len(rest) - i + 1)  # the sweep counts as one
        search(run, operator, problem, _MORE_SEARCHING * share)
        compare(run, operator, problem, operator.input_kinds[0], (1 - _MORE_SEARCHING) * share)
    if not run.small and (not only or "streaming_attention" in only):
        streaming = operators.load("streaming_attention")
        for i, fields in enumerate(SWEEP):
            share = max(run.left_s, 0) / (len(SWEEP) - i)
            compare(run, streaming, streaming.problem(**fields), streaming.input_kinds[0], share, "sweep")


def prove(run: Run, first: list[tuple[Any, Any]]) -> None:
    """Every implementation on its edge cases and, beside that, the tests of the emulator's conformance."""
    tested = run.simulate or "exit" in run.results.steps.get("conformance", {})
    with nullcontext() if tested else steps.tests(run) as started:
        run.step("compiled", lambda: steps.compiled(run, first))
        for operator, problem in first:
            run.step(f"verification {operator.name}", lambda o=operator, p=problem: steps.verification(run, o, p))
        if started:
            run.step("conformance", lambda: steps.conformance(run, started, run.until(_CONFORMED)))
    if not run.simulate:
        run.step("matmul", steps.matmul)


def verify_dtypes(run: Run, operator: Any, problem: Any) -> None:
    """The other dtypes of an operator."""
    for dtype in type(problem).__dataclass_fields__["dtype"].metadata["choices"]:
        if dtype is not problem.dtype:
            other = replace(problem, dtype=dtype)
            run.step(
                f"verification {operator.name} {dtype.value}", lambda p=other: steps.verification(run, operator, p)
            )


def search(run: Run, operator: Any, problem: Any, seconds: float) -> None:
    name = f"{operator.name} {bench.spelled(to_fields(problem))}"
    if run.step(f"search {name}", lambda: steps.search(run, operator, problem, seconds)):
        run.show("report", lambda: steps.report(run))
        for kind in operator.input_kinds:
            run.results.steps.pop(f"peers {name}, {kind}", None)  # of another record


def compare(run: Run, operator: Any, problem: Any, kind: str, seconds: float, group: str = "peers") -> None:
    name = f"{group} {operator.name} {bench.spelled(to_fields(problem))}, {kind}"
    if run.step(name, lambda: steps.beside_peers(run, operator, problem, kind, seconds)):
        run.show("page", lambda: steps.page(run, f"{group} {operator.name}"))


def patience(operator: Any) -> float:
    """How much of the time its comparison may take: frameworks compile, and some tune themselves on the first call."""
    listed = peers.of(operator.name)
    return 0.5 + len(listed) + sum(peer.many_launches for peer in listed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="stop beginning new steps after this long")
    parser.add_argument(
        "--out", type=Path, default=steps.ROOT / "reports" / "out" / "gpu", help="where everything is written"
    )
    parser.add_argument("--small", action="store_true", help="small problems and few tries: does it all work here?")
    parser.add_argument("--simulate", action="store_true", help="the same on a simulated device")
    parser.add_argument("--only", action="append", default=[], choices=operators.names(), help="these operators")
    given = parser.parse_args()
    try:
        with ExitStack() as stack:
            run = Run(given.out, given.minutes, stack, small=given.small or given.simulate, simulate=given.simulate)
            everything(run, given.only)
    except TunerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 1 if any("error" in data for data in run.results.steps.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
