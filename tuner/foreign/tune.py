"""`tuner.tune_kernel`: Kernel Tuner's interface; searches, checks and stores the kernel like any operator."""

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tuner import operators
from tuner.backends import gpu as device
from tuner.base.cache import digest_of, key_of, safe_folder
from tuner.base.fields import formatted
from tuner.compiler.nvrtc import Compiler
from tuner.errors import NoValidConfigError, UsageError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.check.verdict_cache import VerdictCache
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.foreign.call import Call, of_keywords
from tuner.foreign.folder import IMPLEMENTATION, headers, write
from tuner.foreign.script import named
from tuner.foreign.untuned import learn
from tuner.results.attempt import Evidence
from tuner.search.replay.expression import evaluate
from tuner.search.sampler import METHODS
from tuner.search.session import session
from tuner.search.study import EFFORTS, Outcome, SearchRequest, Tried
from tuner.spec.space import Space
from tuner.store.sql import Store

Result = dict[str, Any]

_ASSUMED = "H100"  # if there is no GPU and none is named
_VARIABLE = "TUNER_GPU"
_METHODS = {"brute_force": "exhaustive", "random_sample": "random", "genetic_algorithm": "genetic", "bayes_opt": "gp"}
_OBJECTIVES = ("time", None)
_TIMED = "the number of samples depends on the times: at least three, more for candidates that may win"
# Options that this search does not have, with the replacement.
_ABSENT = {
    "compiler": "NVRTC compiles",
    "log": "attempts are stored: see tuner report",
    "cache": "attempts are stored, and the next call resumes from them: TUNER_DB, or db=",
    "simulation_mode": "use tuner replay to search recordings",
    "parallel": "compilers and checkers already run in parallel",
    "observers": "only times are measured",
    "objectives": "the objective is always the time",
    "objective_higher_is_better": "the objective is always the time",
    "platform": "CUDA has one",
    "device": "CUDA_VISIBLE_DEVICES chooses",
}


def tune_kernel(
    *positional: Any, gpu: str | None = None, db: str | None = None, **keywords: Any
) -> tuple[list[Result], Result]:
    """Find the fastest config of a kernel: `tune_kernel(kernel_name, kernel_source, problem_size, arguments,
    tune_params, …)`, with the parameters of Kernel Tuner 1.x.

    Returns (results, environment). A result is the parameters by name and, of a config that came through, `time` in
    milliseconds where the GPU is in this machine; without one there is no time but `predicted_cost`, which has no unit
    and only ranks. `evidence` is "measured" or "predicted" in each result and in the environment, whose `best_config`
    is the winner: verified against `answer`, or against what the kernel wrote untuned.

    `gpu` names the GPU (default: this machine's, else TUNER_GPU, else an H100 is assumed, with a warning); `db` the
    database. `strategy_options` has max_fevals and time_limit (seconds). Raises UsageError for options that there are
    not, by name, and NoValidConfigError where no config passes its checks.
    """
    options = named(positional, keywords)
    _refuse_absent(options)
    call = of_keywords(options, Path.cwd(), "tune_kernel")
    name = _operator(call)
    target = device.named(_target(gpu))
    operator = operators.load(name)
    implementation = operators.implementation(name, IMPLEMENTATION)
    problem = operator.problem()
    space = implementation.space(problem, target.arch)
    request = SearchRequest(operator, problem, target, command="tune_kernel", **_effort(options, space))
    with (
        Store.open(db) as store,
        Compiler() as compiler,
        Checker(known=VerdictCache.of_user()) as checker,
        session(target, store, compiler, checker, MeasurementPolicy()) as opened,
    ):
        outcome = opened.search(request, lambda _: None, lambda: False)
    results = [_result(tried, outcome, options.get("metrics") or {}) for tried in outcome.tried]
    if outcome.record is None:
        raise NoValidConfigError(f"no config of {call.kernel} passed its checks: {_why_not(outcome)}")
    return results, _environment(outcome, results, options)


def _refuse_absent(options: Mapping[str, Any]) -> None:
    for name, instead in _ABSENT.items():
        if options.get(name):
            raise UsageError(f"{name}={options[name]!r}: tuner.tune_kernel does not support this option: {instead}")
    if options.get("objective") not in _OBJECTIVES:
        raise UsageError(
            f"objective={options['objective']!r}: the objective is always the time; use metrics for other values"
        )
    if options.get("iterations") is not None:
        warnings.warn(f"iterations={options['iterations']} is passed over: {_TIMED}", stacklevel=3)


def _effort(given: Mapping[str, Any], space: Space[Any]) -> dict[str, Any]:
    """Return the search method and its limits."""
    strategy, options = given.get("strategy"), dict(given.get("strategy_options") or {})
    method = _METHODS.get(strategy, strategy) if strategy else "gp"
    if method not in METHODS:
        raise UsageError(f"strategy={strategy!r}: unknown strategy (known: {', '.join((*_METHODS, *METHODS))})")
    budget, seconds = options.pop("max_fevals", None), options.pop("time_limit", None)
    if options:
        raise UsageError(f"strategy_options has {', '.join(options)}: only max_fevals and time_limit are supported")
    if budget is None:
        budget = len(space) if strategy == "brute_force" else min(len(space), EFFORTS["normal"])
    seed = int(given.get("seed") or 0)
    return {"method": method, "budget": max(int(budget), 1), "seconds": seconds, "seed": seed}


def _target(named_gpu: str | None) -> str:
    if named_gpu:
        return named_gpu
    if device.available():
        return device.current_gpu().name
    if gpu_name := os.environ.get(_VARIABLE):
        return gpu_name
    warnings.warn(f"found no GPU, and gpu= or {_VARIABLE} names none: predictions assume {_ASSUMED}", stacklevel=3)
    return _ASSUMED


def _operator(call: Call) -> str:
    """Return the name of the call's operator, whose folder is kept in the user's cache."""
    digest = _digest(call)
    name = f"{re.sub(r'[^a-z0-9]+', '_', call.base.lower()).strip('_')}_{digest}"
    folder = safe_folder("tune_kernel") / digest
    if not (folder / name).is_dir():
        write(name, folder / name, call, learn(call, {}))
    operators.add_folder(folder)
    return name


def _digest(call: Call) -> str:
    """Return eight hex digits of everything that determines the folder."""
    arrays = [
        (argument.name, argument.value.dtype.str, sha256(argument.value.tobytes()).hexdigest())
        for argument in call.arguments
    ]
    answers = [
        (name, sha256(np.ascontiguousarray(answer).tobytes()).hexdigest()) for name, answer in call.answers.items()
    ]
    description = (call.kernel, call.source, call.size, call.choices, call.divisors, call.block, call.restrictions)
    more = (
        None if call.allowed is None else call.allowed.tobytes(),
        call.atol,
        call.smem,
        call.defines,
        call.macros,
        headers(call),
    )
    writer = digest_of(Path(__file__).parent, Path(__file__).parent.glob("*.py"))  # another version writes other files
    return key_of(repr((description, more, arrays, answers)), writer)[:8]


def _result(tried: Tried, outcome: Outcome, metrics: Mapping[str, Any]) -> Result:
    attempt = tried.attempt
    result: Result = {**attempt.config, "evidence": outcome.evidence.value}
    if attempt.failure is not None:
        return result | {"failure": f"{attempt.failure.stage.value}: {attempt.failure.reason}"}
    if attempt.measurement is not None:
        result["time"] = attempt.measurement.time_us / 1000
        result |= {name: _metric(metric, result) for name, metric in metrics.items()}
    if attempt.prediction is not None:
        result["predicted_cost"] = attempt.prediction.cost
    if tried.verdict is not None:
        result["verified"] = tried.verdict.ok
        result |= {} if tried.verdict.ok else {"failure": tried.verdict.reason}
    return result


def _metric(metric: Callable[[Result], Any] | str, result: Result) -> Any:
    return metric(result) if callable(metric) else float(evaluate(metric, lambda word: result[word]))


def _environment(outcome: Outcome, results: Sequence[Result], options: Mapping[str, Any]) -> Result:
    record = outcome.record
    assert record is not None
    best = next(result for result in results if all(result.get(name) == value for name, value in record.config.items()))
    measured = outcome.evidence is Evidence.MEASURED
    environment = {
        "device_name": outcome.request.gpu.name,
        "evidence": outcome.evidence.value,
        "best_config": best,
        "operator": outcome.request.operator.name,
        "verified": record.verdict.checks,
        "toolkit": record.identity.toolkit,
        "strategy": options.get("strategy") or outcome.request.method,
        "seconds": outcome.seconds,
        "why_stopped": outcome.why_stopped,
    }
    if not options.get("quiet"):
        evidence = f"{best['time']:.4g} ms" if measured else f"predicted, not measured on {outcome.request.gpu.name}"
        print(f"best of {len(results)} configs: {formatted(record.config)} ({evidence})")  # as Kernel Tuner does
    return environment


def _why_not(outcome: Outcome) -> str:
    failures = [tried.attempt.failure.reason for tried in outcome.tried if tried.attempt.failure is not None]
    wrong = [tried.verdict.reason for tried in outcome.tried if tried.verdict is not None and not tried.verdict.ok]
    return (wrong or failures or ["nothing was tried"])[0]
