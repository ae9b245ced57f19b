"""Our best kernel beside its peers: the same inputs, one process, in turns; ratios with their intervals."""

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tuner import nvrtc, operators, peers
from tuner.arch import GPU
from tuner.cache import Cache
from tuner.choice import choose
from tuner.device import Code, Device
from tuner.errors import MachineError, TemplateError
from tuner.gpu_device import GpuDevice
from tuner.judge import Case, cases
from tuner.operator import Operator, from_fields, scalars, to_fields
from tuner.peers import AbsentError, Peer
from tuner.policy import MeasurementPolicy
from tuner.pool import Limits, Lost, Pool
from tuner.records import Snapshot
from tuner.render import render
from tuner.result import Failed, Fields
from tuner.samples import Estimate, Times, estimate, in_units, interval
from tuner.toolkit import Options
from tuner.verify import compare as compare_output
from tuner.worker import Place, Stand

_OURS = "tuner"
_PATIENCE_S = 300.0  # torch compiles
_WARM_UPS = 3
_FLUSHES = 4  # the Python of a framework takes tens of microseconds a call


@dataclass(frozen=True, slots=True)
class Row:
    """One contender. Times in microseconds; `ratio` is its time over ours, from paired differences."""

    name: str
    state: str  # ok, absent, failed, wrong, or roof: a bound and no kernel
    note: str = ""
    time_us: Estimate | None = None
    ratio: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table of contenders on one problem and device. Ours first."""

    operator: str
    problem: Fields
    config: Fields
    implementation: str
    device: Fields
    policy: str
    rows: tuple[Row, ...]

    def data(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def table(self) -> list[tuple[str, ...]]:
        """Columns: contender, state, median µs, interval, time over ours with interval, note."""
        return [
            (row.name, row.state, *_spelled(row.time_us, "µs"), *_spelled(row.ratio, "×"), row.note)
            for row in self.rows
        ]


def contender(operator: Operator[Any], problem: Any, gpu: GPU, snapshot: Snapshot) -> Code:
    """What an application would run on this problem: the record's config, or the default.

    Raises UsageError where no implementation serves it, TemplateError where it does not compile.
    """
    choice = choose(operator, problem, (gpu,), snapshot)
    source = render(operator, choice.implementation, problem, choice.config)
    outcome = nvrtc.compile(source, Options(gpu.arch.name), Cache.of("cubin"))
    if isinstance(outcome, Failed):
        raise TemplateError(f"{operator.name}/{choice.implementation.name} does not compile: {outcome.reason}")
    config = to_fields(choice.config)
    return Code(operator.name, choice.implementation.name, to_fields(problem), config, outcome.image)


def compare(code: Code, place: Place, policy: MeasurementPolicy | None = None, seed: int = 0) -> Comparison:
    """Race ours and every peer that is there. Raises MachineError when the process does not come through."""
    memory = resource.getrlimit(resource.RLIMIT_AS)[1]
    limits = Limits(timeout_s=_PATIENCE_S, memory_bytes=memory)
    with Pool(_compare, workers=1, limits=limits) as pool:
        ((_, answer),) = pool.run([(code, place, policy or MeasurementPolicy(), seed)])
    if isinstance(answer, Lost):
        raise MachineError(f"the comparison did not come through ({answer.reason}): {answer.log[-2000:]}")
    return answer


_Job = tuple[Code, Place, MeasurementPolicy, int]
Sampler = Callable[[], float]  # the time of a run, in microseconds


def _compare(job: _Job) -> Comparison:
    code, place, policy, seed = job
    device = place.open()
    stand = Stand(device)
    timer = stand.timer(code, policy)
    samplers: dict[str, Sampler] = {_OURS: lambda: timer.sample().time_us}
    found, left_out = _peers(code, device, policy)
    times = _race(samplers | found, policy.rounds, seed)
    rows = (*_placed([_OURS, *found], times), _roof(code, device, times[:, 0]), *left_out)
    return Comparison(code.operator, code.problem, code.config, code.implementation, device.facts(), policy.name, rows)


def _race(samplers: Mapping[str, Sampler], rounds: int, seed: int) -> Times:
    """[rounds, contenders] in microseconds: everybody once a round, in random order."""
    rng, drawn = np.random.default_rng(seed), list(samplers.values())
    times = np.empty((rounds, len(drawn)))
    for row in times:
        for i in rng.permutation(len(drawn)):
            row[i] = drawn[i]()
    return times


def _peers(code: Code, device: Device, policy: MeasurementPolicy) -> tuple[dict[str, Sampler], list[Row]]:
    """(samplers of the peers that are there and right, a row for each of the others)."""
    found: dict[str, Sampler] = {}
    left_out: list[Row] = []
    inputs = _Inputs(code)
    for peer in peers.of(code.operator):
        try:
            found[peer.name] = _sampler(peer, inputs, device, policy)
        except AbsentError as error:
            left_out.append(Row(peer.name, "absent", str(error)))
        except _WrongError as error:
            left_out.append(Row(peer.name, "wrong", str(error)))
        except Exception as error:  # a peer may fail in any way, and that is no reason to lose the others
            left_out.append(Row(peer.name, "failed", f"{type(error).__name__}: {error}".partition("\n")[0]))
    return found, left_out


class _WrongError(Exception):
    """A peer's output is not what float64 says."""


class _Inputs:
    """What the peers of one comparison share: edge cases and, once a peer is there, the timed problem's tensors."""

    def __init__(self, code: Code) -> None:
        self._operator, self._code = operators.load(code.operator), code
        self.problem = from_fields(self._operator.problem, code.problem)

    def cases(self) -> Sequence[Case]:
        return cases(self._operator, self._code.problem, every=False)

    @cached_property
    def timed(self) -> tuple[Mapping[str, Any], Mapping[str, float]]:
        """(torch tensors, scalars). Raises AbsentError without torch."""
        peers.to_torch({})  # before seconds go into drawing
        arrays = self._operator.inputs(self.problem, np.random.default_rng(0), self._operator.input_kinds[0])
        return peers.to_torch(arrays), scalars(self._operator, self.problem, arrays)


def _sampler(peer: Peer, inputs: _Inputs, device: Device, policy: MeasurementPolicy) -> Sampler:
    if not isinstance(device, GpuDevice):
        raise AbsentError("peers need a GPU")
    run = peer.prepare(inputs.problem, *inputs.timed)
    if not _check(peer, inputs.cases()):
        raise AbsentError("it takes none of the edge cases, so nothing says that it is right")
    run()
    last = float(np.median([device.times_of(run, 1, policy, flushes=_FLUSHES)[0] for _ in range(_WARM_UPS)]))
    launches = policy.launches(last)
    return lambda: float(np.median(device.times_of(run, launches, policy, flushes=_FLUSHES)))


def _check(peer: Peer, edge_cases: Sequence[Case]) -> str:
    """The largest case that a peer takes; empty for none. Raises _WrongError where it comes out wrong."""
    for case in sorted(edge_cases, key=_elements, reverse=True):
        try:
            outputs = peer.prepare(case.problem, peers.to_torch(case.arrays), case.scalars)()
        except Exception:  # not this shape; perhaps another, and it must take the timed one in any case
            continue
        for name, tensor in outputs.items():
            exact, rounded, tolerance = case.right[name]
            error = compare_output(name, peers.to_numpy(tensor), exact, rounded, tolerance)
            if not error.ok:
                raise _WrongError(f"{case.name}: {error.reason}")
        return case.name
    return ""


def _elements(case: Case) -> int:
    return sum(exact.size for exact, _, _ in case.right.values())


def _placed(names: Sequence[str], times: Times) -> list[Row]:
    logs = np.log(times)
    return [
        Row(name, "ok", "", estimate(times[:, i].tolist()), in_units(interval(logs[:, i] - logs[:, 0])))
        for i, name in enumerate(names)
    ]


def _roof(code: Code, device: Device, ours: Times) -> Row:
    """A plain copy of as many bytes as the operator must move."""
    operator = operators.load(code.operator)
    nbytes = operator.cost(from_fields(operator.problem, code.problem)).bytes
    rate = device.copy_gb_s()
    time_us = nbytes / rate / 1e3
    note = f"{nbytes / 1e6:.1f} MB at {rate:.0f} GB/s, what a large copy reaches"
    roof, ratio = Estimate(time_us, time_us, time_us, 1), in_units(interval(np.log(time_us / ours)))
    return Row("plain copy", "roof", note, roof, ratio)


def _spelled(found: Estimate | None, unit: str) -> tuple[str, str]:
    if found is None:
        return "", ""
    return f"{found.mid:.4g} {unit}", f"{found.low:.4g} … {found.high:.4g}"
