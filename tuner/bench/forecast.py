"""A comparison without a GPU: declared work and predicted cost of the kernels that would be timed."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tuner import operators
from tuner.arch import GPU, MMA_FLOPS
from tuner.base.fields import Fields
from tuner.bench import peers
from tuner.bench.comparison import formatted_problem
from tuner.bench.contender import context
from tuner.dispatcher.config_choice import choose
from tuner.evaluate.predict.cost import uncompiled
from tuner.evaluate.predict.predicted_time import UNJUDGED, PredictedTime, recorded_time
from tuner.results.attempt import Evidence
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import to_fields
from tuner.store.records import Snapshot


@dataclass(frozen=True, slots=True)
class Outlook:
    """One kernel. `flops` counts its mma instructions; `cost` ranks, and `predicted_time` is a time."""

    name: str
    origin: str  # origin of its config
    flops: float
    needed_flops: float
    nbytes: float  # declared traffic between DRAM and L2
    least_bytes: float
    cost: float
    bottleneck: str
    predicted_time: PredictedTime | None = None  # of a record, if devices have judged such kernels


@dataclass(frozen=True, slots=True)
class Forecast:
    """Kernels on one problem and GPU: ours, then other implementations, and a related operator for context."""

    COLUMNS: ClassVar = ("contender", "config of", "GFLOP", "/ needed", "MB", "/ least", "predicted cost", "bound by")

    operator: str
    problem: Fields
    gpu: str
    rows: tuple[Outlook, ...]
    peers: tuple[str, ...]  # peers that a comparison would time

    @property
    def evidence(self) -> str:
        return Evidence.PREDICTED.value

    @property
    def title(self) -> str:
        return formatted_problem(self.operator, self.problem)

    def data(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {"evidence": self.evidence, **asdict(self)}

    @property
    def times(self) -> str:
        """The predicted times of the kernels that devices have judged, or that they have judged none."""
        times = [f"{row.name}: {row.predicted_time}" for row in self.rows if row.predicted_time]
        return "; ".join(times) or UNJUDGED

    def table(self) -> list[tuple[str, ...]]:
        """Return rows of COLUMNS, with the cost relative to ours."""
        return [
            (
                row.name,
                row.origin,
                f"{row.flops / 1e9:.2f}" if row.flops else "",
                f"{row.flops / row.needed_flops:.2f}" if row.flops else "",
                f"{row.nbytes / 1e6:.1f}",
                f"{row.nbytes / row.least_bytes:.2f}",
                f"{row.cost / self.rows[0].cost:.2f} ×",
                row.bottleneck,
            )
            for row in self.rows
        ]


def forecast(operator: Operator[Any], problem: Any, gpu: GPU, snapshot: Snapshot) -> Forecast:
    """Return the forecast. Raises UsageError if no implementation serves the problem."""
    rows = list(_outlooks(operator, problem, gpu, snapshot))
    if dense := context(operator, problem):
        rows.append(next(_outlooks(*dense, gpu, snapshot)))
    names = tuple(peer.name for peer in peers.of(operator.name))
    return Forecast(operator.name, to_fields(problem), gpu.name, tuple(rows), names)


def _outlooks(operator: Operator[Any], problem: Any, gpu: GPU, snapshot: Snapshot) -> Iterator[Outlook]:
    """Yield the kernel that an application would run, then the defaults of the other implementations."""
    choice = choose(operator, problem, (gpu,), snapshot)
    origin = "a record" if choice.record else "the default"
    yield _outlook(choice.instance, gpu, origin, recorded_time(choice.record) if choice.record else None)
    for implementation in operators.implementations(operator.name):
        if (
            implementation.name != choice.instance.implementation.name
            and implementation.refusal(problem, gpu.arch) is None
        ):
            yield _outlook(Instance.default(operator, implementation, problem, gpu.arch), gpu, "the default")


def _outlook(instance: Instance, gpu: GPU, origin: str, time: PredictedTime | None = None) -> Outlook:
    least, work = instance.operator.cost(instance.problem), instance.work(gpu)
    prediction = uncompiled(instance.plan(), work, gpu)
    return Outlook(
        name=instance.name,
        origin=origin,
        flops=sum(launch.products for launch in work) * MMA_FLOPS,
        needed_flops=least.flops,
        nbytes=sum(launch.dram_bytes for launch in work),
        least_bytes=least.bytes,
        cost=prediction.cost,
        bottleneck=prediction.bottleneck,
        predicted_time=time,
    )
