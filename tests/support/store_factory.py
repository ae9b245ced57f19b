"""Values for the tests of the store and of records."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.base.canonical_json import encode
from tuner.results.attempt import Attempt, Evidence, Identity, Measurement, Prediction, Resources
from tuner.results.final_race import FinalRace, Lap, Runner
from tuner.results.proof import CheckedCode, Proof
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict

PROBLEM = {"B": 2, "T": 1000, "causal": True, "dtype": "bf16"}
OK = Verdict((OutputError("o", 0.001, 0.01, 0.004, 0.1),), checks=("T=63 seed=1",))
WRONG = Verdict((OutputError("o", float("nan"), float("inf"), 0.004, 0.1),), findings=("o[3] is NaN",))


def identity(**changes: Any) -> Identity:
    given = {"problem": encode(PROBLEM | changes.pop("problem", {}))} | changes
    base = Identity("scan", "fast", "", "H200", "5eed", "-arch=sm_90a", "nvrtc 13.4", "predicted/1")
    return replace(base, **given)


def attempt(BT: int = 64, **changes: Any) -> Attempt:
    return Attempt(
        identity(**changes),
        config={"BT": BT, "swizzle": True},
        resources=Resources(168, 0, 49152, 128, 2, "registers", "ab12"),
        prediction=Prediction(3.5, {"mma": 2.5, "barriers": 1.0}, "mma", "1"),
        seconds=0.25,
    )


def record(BT: int = 64, evidence: Evidence = Evidence.PREDICTED, created: str = "", **changes: Any) -> TuningRecord:
    tried = attempt(BT, **changes)
    assert tried.resources is not None
    return TuningRecord(
        identity=tried.identity,
        config=tried.config,
        evidence=evidence,
        verdict=OK,
        resources=tried.resources,
        prediction=tried.prediction,
        measurement=Measurement(12.5, 12.25, 12.75, 30) if evidence is Evidence.MEASURED else None,
        margin=0.03,
        tried=128,
        tuner="0.1.0",
        created=created or "2026-11-21T10:00:00+00:00",
    )


def race(**changes: Any) -> FinalRace:
    """Return a race of two contenders, the first one slower, in three rounds on a device that warms up."""
    rounds = tuple((Lap(12.8, 1980 - 15 * n, 0, 60 + n), Lap(12.5, 1965, 4, 60 + n, 0.125)) for n in range(3))
    runners = tuple(Runner("fast", {"BT": BT, "swizzle": True}, "5eed") for BT in (32, 64))
    race = FinalRace("scan", encode(PROBLEM), "H200", "measured/1 cold L2 eager", runners, 1, rounds, floor_us=2.25)
    return replace(race, **changes)


def proof(verdict: Verdict = OK, **changes: Any) -> Proof:
    code = CheckedCode("scan", "fast", "H200", "13.0", "5eed", "-arch=sm_90a", "nvrtc 13.4")
    return Proof(replace(code, **changes), encode(PROBLEM), verdict)


def study(**changes: Any) -> dict[str, Any]:
    return {
        "operator": "scan",
        "problem": encode(PROBLEM),
        "gpu": "H200",
        "command": "tuner search scan --gpu H200",
        "seed": 7,
        "method": "gp",
        "effort": "quick",
        "budget": 32,
    } | changes


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Remove the permission to write `folder` and its files, also from root. `folder` must not be in a private one."""
    user = os.geteuid()
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    if user == 0:
        os.seteuid(65534)  # permissions do not apply to root
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
