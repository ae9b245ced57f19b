"""Tests of predictions against published measurements: the figures of predict/devices.md, on a part of the rows."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_operators import own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.base.assets import ROOT
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.evaluate.predict.compiled import predict_config
from tuner.evaluate.predict.cost import MODEL
from tuner.evaluate.predict.kernel_classes import SHARING, STREAMING
from tuner.evaluate.predict.predicted_time import EVIDENCE, UNJUDGED, predicted_time, time_or_rank
from tuner.results.attempt import Prediction
from tuner.spec.instance import Instance

PREDICTION = Prediction(1_410_000.0, {}, "DRAM", MODEL, STREAMING)


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def table(name: str, *values: Any) -> list[Any]:
    return list(getattr(import_module("public_measurements"), name)(*values))


@cache
def streams() -> list[Any]:
    return table("streams", 8)


def mean_error(rows: list[Any]) -> float:
    return statistics.mean(abs(row.error) for row in rows)


@pytest.mark.parametrize("device", ["A100 40GB", "A100,", "H100 PCIe"])
def test_streaming_kernels_reach_the_measured_bandwidth_at_every_occupancy(device: str) -> None:
    rows = [row for row in streams() if row.group.startswith(device)]
    assert len(rows) >= 4 * 6
    assert mean_error(rows) < 0.1


def test_measurements_of_devices_that_were_held_out_lie_within_the_band() -> None:
    rows = [row for row in streams() if not row.group.startswith("A100 40GB")]
    band = EVIDENCE["streaming"]
    inside = sum(band.low <= row.error <= band.high for row in rows)
    assert 0.8 * len(rows) < inside < len(rows)


@pytest.mark.parametrize(("name", "most"), [("strides", 0.08), ("copies", 0.12), ("latencies", 0.03)])
def test_memory_costs_what_was_measured(name: str, most: float) -> None:
    assert mean_error(table(name)) < most


def test_every_data_file_names_its_source_and_licence() -> None:
    for path in Path(import_module("public_measurements").DATA).glob("*.tsv"):
        head = " ".join(line for line in path.read_text().splitlines() if line.startswith("#"))
        assert "github.com" in head and ("GPL" in head or "licence" in head or "Apache" in head), path.name


def test_a_class_with_evidence_has_a_time_with_its_band() -> None:
    time = predicted_time(PREDICTION, gpu("A100"))
    assert time is not None and time.time_us == pytest.approx(1000.0)
    assert time.low_us < time.time_us < time.high_us
    assert str(time).startswith("1 ms -11% … +27%: at least 90 % of ")
    assert "384 measurements of streaming kernels on A100 and H100 PCIe" in str(time)


@pytest.mark.parametrize(
    ("name", "change"), [("A100", {"kernels": ""}), ("RTX 3090", {}), ("A100", {"model": "predicted/1"})]
)
def test_a_class_an_arch_or_a_model_without_evidence_has_no_time(name: str, change: dict[str, str]) -> None:
    prediction = replace(PREDICTION, **change)
    assert predicted_time(prediction, gpu(name)) is None
    assert time_or_rank(prediction, gpu(name)) == UNJUDGED


@pytest.fixture
def softmax(tmp_path: Path) -> Iterator[Instance]:
    with own_operator(tmp_path) as name:
        operator, kernel = operators.load(name), operators.implementation(name, "block")
        yield Instance.default(operator, kernel, operator.problem(), gpu("A100").arch)


def test_a_softmax_shares_values_and_is_no_streaming_kernel(softmax: Instance) -> None:
    assert predicted(softmax).kernels == SHARING


def test_a_copy_is_a_streaming_kernel() -> None:
    with operators.folder(import_module("public_measurements").KERNELS):
        operator, kernel = operators.load("streams"), operators.implementation("streams", "fp64")
        copy = Instance(operator, kernel, operator.problem(kernel=2), kernel.config(threads=256))
        assert predicted(copy).kernels == STREAMING


def test_declared_work_belongs_to_no_class_that_was_measured() -> None:
    operator, kernel = operators.load("linear_attention"), operators.implementations("linear_attention")[0]
    assert predicted(Instance.default(operator, kernel, operator.problem(), gpu("A100").arch)).kernels == ""


def predicted(instance: Instance) -> Prediction:
    cubin = nvrtc.compile(render(instance), Options("sm_80"), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    return predict_config(instance, gpu("A100"), cubin)
