"""Report data without a search: plausible configs, costs and failures, drawn from a seed."""

import itertools
import json
import random
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tuner.base.fields import Fields
from tuner.report import Fact, ReportData, SearchFacts, SpaceFacts
from tuner.results.attempt import Attempt, Evidence, Failed, Identity, Measurement, Prediction, Resources, Stage
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict

PROBLEM: Fields = {
    "head_dim": 72, "dtype": "bf16", "causal": True, "layout": "BTHD",
    "batch": 2, "heads": 16, "kv_heads": 4, "seq_q": 4096, "seq_k": 4096,
}  # fmt: skip
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "BT": (64, 128, 192),
    "BK": (32, 64, 96, 128),
    "warps": (4, 8),
    "stages": (1, 2, 3),
    "q_in_registers": (False, True),
    "swizzle": (False, True),
    "min_ctas": (1, 2),
    "smem_budget": (49152, 98304, 232448),
}
DEFAULT: Fields = {
    "BT": 64, "BK": 64, "warps": 4, "stages": 2, "q_in_registers": True, "swizzle": True, "min_ctas": 1,
    "smem_budget": 98304,
}  # fmt: skip
SOURCE = """// One block computes BT rows of o for one (batch, head). Grid: (ceil(T / BT), heads, batch).
#include "fragment.cuh"

constexpr int BT = {BT};  // query rows per block
constexpr int BK = {BK};  // keys per step
constexpr int kWarps = {warps};
constexpr int kStages = {stages};
constexpr bool kQInRegisters = {q_in_registers};
constexpr float kLog2e = 1.4426950408889634f;
static_assert(BT == 16 * kWarps || BT % (16 * kWarps) == 0, "a warp owns whole tiles of 16 rows");

struct SharedStorage {{
  __nv_bfloat16 k[kStages][BK * 72];
  __nv_bfloat16 v[kStages][BK * 72];
}};

extern "C" __global__ void __launch_bounds__(32 * kWarps, {min_ctas})
forward(const __nv_bfloat16* __restrict__ q, float* __restrict__ o, int T) {{
  extern __shared__ char smem[];
  /* scores, softmax, accumulate */
  for (int step = 0; step < (T + BK - 1) / BK; ++step) {{
    load_chunk(smem, step);
    if (step < 1 && "tail" != nullptr) mask_tail(smem);
  }}
}}
"""


def configs(n: int) -> list[Fields]:
    """`n` distinct configs, the default first."""
    every = [dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())]
    random.Random(0).shuffle(every)
    return [DEFAULT, *(config for config in every if config != DEFAULT)][:n]


def identity(implementation: str = "mma_sync", gpu: str = "sm_90a", problem: Fields = PROBLEM) -> Identity:
    return Identity(
        operator="flash_attention",
        implementation=implementation,
        problem=json.dumps(dict(problem), sort_keys=True),
        gpu=gpu,
        source="1f0c9ab2d3e44c55",
        options="--gpu-architecture=sm_90a --std=c++17 --use_fast_math=false",
        toolkit="nvrtc 13.4",
        policy="predicted/1",
    )


def prediction(config: Fields, rng: random.Random, scale: float = 1.0) -> Prediction:
    tile, keys, warps = int(config["BT"]), int(config["BK"]), int(config["warps"])
    stages, swizzle = int(config["stages"]), bool(config["swizzle"])
    terms = {
        "tensor": 41000.0,
        "exp": 27000.0,
        "fp32": 21000.0 * (1 + 8 / keys),
        "shared memory": (15500.0 if swizzle else 33000.0) * (1 + 48 / tile) * (1 if config["q_in_registers"] else 1.2),
        "issue": 19000.0 * (1 + 12 / keys),
        "L2": 5200.0 * 128 / tile,
        "DRAM": 2300.0,
        "tail": 1800.0 * tile / 64 * rng.uniform(0.9, 1.1),
        "latency": 24000.0 / stages * (8 / warps) ** 0.3 * 64 / keys,
    }
    terms = {name: round(scale * cycles, 1) for name, cycles in terms.items()}
    cost = sum(cycles**1.5 for cycles in terms.values()) ** (1 / 1.5) * rng.uniform(0.995, 1.005)
    return Prediction(cost, terms, max(terms, key=lambda name: terms[name]), "predicted/1")


def resources(config: Fields, spill_bytes: int = 0) -> Resources:
    smem = int(config["stages"]) * int(config["BK"]) * 72 * 4
    registers = min(255, 96 + int(config["BK"]) + 24 * bool(config["q_in_registers"]))
    ctas = max(1, min(233472 // (smem + 1024), 65536 // (registers * 32 * int(config["warps"]))))
    read = [config[name] for name in CHOICES if name != "smem_budget"]
    digest = sha256(repr(read).encode()).hexdigest()[:16]
    limiter = "registers" if registers > 180 else "shared memory"
    return Resources(registers, spill_bytes, smem, 32 * int(config["warps"]), ctas, limiter, digest)


def failure(config: Fields, draw: float) -> Failed | None:
    """A tenth or so of all configs fail, for reasons that fit them."""
    if config["BT"] == 192 and config["warps"] == 8:
        log = 'default_program(10): error: static assertion failed with "a warp owns whole tiles of 16 rows"\n1 error'
        return Failed(Stage.COMPILE, "static assertion failed: a warp owns whole tiles of 16 rows", log)
    if int(config["stages"]) * int(config["BK"]) * 288 > int(config["smem_budget"]):
        need = int(config["stages"]) * int(config["BK"]) * 288
        return Failed(Stage.LIMIT, f"cannot launch: {need} bytes of shared memory, {config['smem_budget']} allowed")
    if draw < 0.02:
        return Failed(Stage.COMPILE, "ptxas ran out of time after 60 s")
    return None


def measurement(cost: float, rng: random.Random) -> Measurement:
    time = cost / 310 * rng.uniform(0.97, 1.03)
    return Measurement(time, time * 0.994, time * 1.007, 40)


def attempt(config: Fields, rng: random.Random, *, measured: bool = False, implementation: str = "mma_sync") -> Attempt:
    failed = failure(config, rng.random())
    if failed is not None:
        return Attempt(identity(implementation), config, failure=failed, seconds=0.2)
    spills = 96 if config["BK"] == 128 and config["q_in_registers"] else 0
    result = prediction(config, rng, 6.0 if implementation == "naive" else 1.0)
    time = measurement(result.cost, rng) if measured else None
    return Attempt(identity(implementation), config, None, resources(config, spills), result, time, 0.3)


def verdict(rng: random.Random) -> Verdict:
    errors = (
        OutputError("o", 0.0021 * rng.uniform(0.9, 1.1), 0.0117, 0.0052, 0.031),
        OutputError("lse", 1.9e-7 * rng.uniform(0.9, 1.1), 4.8e-7, 1e-5, 1e-4),
    )
    checks = tuple(f"seq_q={t} seq_k={s} heads=4/2 checked random seed=1" for t, s in ((1, 63), (63, 200), (200, 200)))
    return Verdict(errors, checks=checks)


def record(attempts: list[Attempt], evidence: Evidence, verdicts: Mapping[int, Verdict]) -> TuningRecord | None:
    def spilling(index: int) -> bool:
        used = attempts[index].resources
        return used is not None and used.spill_bytes > 0

    valued = [(spilling(i), a.value, i) for i, a in enumerate(attempts) if a.value is not None]
    if not valued:
        return None
    valued.sort()
    _, best, index = valued[0]
    winner = attempts[index]
    assert winner.resources is not None
    return TuningRecord(
        identity=winner.identity,
        config=winner.config,
        evidence=evidence,
        verdict=verdicts.get(index, verdict(random.Random(1))),
        resources=winner.resources,
        prediction=winner.prediction,
        measurement=winner.measurement,
        margin=valued[1][1] / best - 1 if len(valued) > 1 else 0.0,
        tried=len(attempts),
        tuner="0.1.0",
        created="2026-11-21T09:30:00+00:00",
    )


def source(config: Fields) -> str:
    return SOURCE.format(**{name: str(value).lower() for name, value in config.items()})


def report_data(n: int = 128, *, measured: bool = False, problem: Fields = PROBLEM) -> ReportData:
    """A finished search of `n` attempts."""
    rng = random.Random(0)
    attempts = [attempt(config, rng, measured=measured) for config in configs(n)]
    working = [i for i, a in enumerate(attempts) if a.resources and not a.resources.spill_bytes]
    finalists = sorted(working, key=lambda i: attempts[i].value or 0.0)[:8]
    verdicts = {index: verdict(rng) for index in finalists}
    evidence = Evidence.MEASURED if measured else Evidence.PREDICTED
    won = record(attempts, evidence, verdicts)
    return ReportData(
        operator="flash_attention",
        implementations=("mma_sync",),
        problem=problem,
        gpu="H200" if measured else "sm_90a",
        arch="sm_90a",
        device="H200" if measured else "H100",
        evidence=evidence,
        attempts=attempts,
        search=SearchFacts("gp", 0, n, "normal", f"the budget of {n} tries is used up", 38.4, prior_correlation=0.81),
        command="tuner search flash_attention --gpu sm_90a --head-dim 72 --causal --seed 0",
        record=won,
        verdicts=verdicts,
        default=attempts[0] if attempts else None,
        spaces=(
            SpaceFacts(
                "mma_sync", 20736, 1731,
                (("a warp owns 16 rows", 6912), ("K and V fit the budget", 9230), ("no empty stage", 2863)),
            ),
        ),
        importance={"mma_sync": {"swizzle": 0.46, "BT": 0.21, "stages": 0.17, "BK": 0.12, "q_in_registers": 0.03}},
        work=(
            Fact("mma work", "1.00×", "of the mathematics: D=72 costs 72"),
            Fact("bytes moved", "1.04×", "of the least"),
        ),
        source=source(won.config) if won else "",
        default_source=source(DEFAULT),
        environment={"python": "3.12.1", "nvrtc": "13.4.92", "driver": "no driver", "os": "Linux 6.1"},
        usage="from tuner import dispatcher\n\no, lse = dispatcher.flash_attention(q, k, v, causal=True)",
        export="tuner render flash_attention --gpu H200 --head-dim 72 --causal --standalone DIR",
    )  # fmt: skip
