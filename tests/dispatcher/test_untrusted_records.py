"""Tests of hostile records: whatever their fields contain, a call neither fails nor runs undeclared code."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.base.canonical_json import decode, encode
from tuner.compiler import render as rendering
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import TemplateError
from tuner.results.attempt import Evidence, Identity, Resources
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import canonical, to_fields
from tuner.store import record_lines
from tuner.store.records import Snapshot

PAYLOAD = (
    '8; extern "C" int system(const char*); '
    '__attribute__((constructor)) static void run(){{ system("touch {marker}"); }} constexpr int kZero = 0'
)
H200 = gpu("H200")


def instances() -> Iterator[Instance]:
    """The default config of every implementation, on the first arch that it serves."""
    for name in operators.names():
        operator = operators.load(name)
        for implementation in operators.implementations(name):
            problem = implementation.example or operator.problem()
            arch = next(arch for arch in ARCHES.values() if implementation.refusal(problem, arch) is None)
            yield Instance.default(operator, implementation, problem, arch)


def record_of(instance: Instance, source: str, config: dict[str, Any]) -> TuningRecord:
    problem = canonical(instance.problem)
    named = instance.operator.name, instance.implementation.name, problem, H200.name, source
    return TuningRecord(
        Identity(*named, f"-arch={H200.arch.name}", "nvrtc 13.4", "predicted/3"),
        config,
        Evidence.PREDICTED,
        Verdict((OutputError("o", 0.0, 0.0, 1e-6, 1e-6),)),
        Resources(32, 0, 0, 32, 16, "threads", "5a55"),
        None,
        None,
        margin=0.1,
        tried=2,
        tuner="0.1.0",
        created="2026-11-21T00:00:00+00:00",
    )


def snapshot(folder: Path, *records: str) -> Snapshot:
    (folder / "records.jsonl").write_text("".join(f"{line}\n" for line in records))
    return Snapshot.load([folder / "records.jsonl"])


@pytest.mark.parametrize("instance", [*instances()], ids=lambda instance: instance.name)
def test_no_parameter_lets_text_through(instance: Instance) -> None:
    for part in (instance.config, instance.problem):
        for field in fields(part):
            poisoned = replace(
                instance, **{"config" if part is instance.config else "problem": changed(part, field.name)}
            )
            with pytest.raises(TemplateError, match=f"is not rendered: {field.name} is"):
                rendering.render(poisoned)
            plain = poisoned.fields()
            with pytest.raises((TypeError, ValueError)):
                operators.instance(InstanceFields(plain.operator, plain.implementation, plain.problem, plain.config))


def changed(part: Any, name: str) -> Any:
    """A copy whose field holds the payload, past all that its class checks."""
    copy = object.__new__(type(part))
    for field in fields(part):
        object.__setattr__(copy, field.name, PAYLOAD if field.name == name else getattr(part, field.name))
    return copy


def test_a_record_whose_config_holds_code_is_named_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    operator = operators.load("linear_attention")
    sequential = operators.implementation("linear_attention", "sequential")
    problem = operator.problem(batch=1, seq_len=4, heads=2, head_dim=8, dtype=DType.FP16)
    instance = Instance.default(operator, sequential, problem, H200.arch)
    config = to_fields(instance.config) | {"ahead": PAYLOAD.format(marker=marker)}
    with monkeypatch.context() as unchecked:  # the digest that a program without the check would accept
        unchecked.setattr(rendering, "check_fields", lambda _: None)
        digest = rendering.render(instance.with_config(replace(instance.config, ahead=config["ahead"]))).digest
    at = Dispatcher(snapshot(tmp_path, record_lines.to_line(record_of(instance, digest, config))), (H200,))
    x = np.ones((1, 4, 2, 8), np.float16)
    o, _ = at.call("linear_attention", x, x, x, 0.5)
    assert np.allclose(o, 1)
    assert not marker.exists()
    explained = at.explain("linear_attention", x, x, x, 0.5)
    assert explained.record is None
    assert "it is not valid here: ahead is '8; extern" in explained.passed_over[0]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([10**12, 2**63, -1, "true", PAYLOAD, "naive", "two_pass", "../naive", "\x1b[2J", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.usefixtures("own_folder")
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=JSON)
def test_whatever_a_field_of_a_record_holds_a_call_is_served(tmp_path: Path, data: st.DataObject, value: Any) -> None:
    operator, naive = operators.load("row_norm"), operators.implementation("row_norm", "naive")
    instance = Instance(operator, naive, operator.problem(rows=5), naive.config(64))
    line = record_lines.to_line(record_of(instance, rendering.render(instance).digest, to_fields(instance.config)))
    changed = decode(line)
    place = data.draw(st.sampled_from(sorted(places(changed), key=str)))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    at = Dispatcher(snapshot(tmp_path, json.dumps(changed) if data.draw(st.booleans()) else encode(changed)), (H200,))
    x = np.zeros((5, 32), np.float32)
    explained = at.explain("row_norm", x, np.ones(32, np.float32))
    str(explained).encode()
    serving = operators.implementation("row_norm", explained.implementation)
    config = serving.config(**explained.config)
    assert serving.space(operator.problem(rows=5), H200.arch).refusal(config) is None
    assert all(type(value) is int for value in explained.config.values())


def places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys and indices that lead to each value of a document."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from places(value, (*above, key))
