"""Tests of results as JSON: old data can still be read, and keep their text."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from tuner.errors import StoreError
from tuner.results.attempt import Attempt, Failed, Identity, Lint, Measurement, Prediction, Resources, Stage
from tuner.results.codec import attempt_from, to_data, verdict_from
from tuner.results.verdict import OutputError, Verdict
from tuner.store.record_lines import from_line, to_line

IDENTITY = Identity("op", "impl", "{}", "sm_90a", "0" * 16, "-arch=sm_90a", "nvrtc 13.4", "predicted/1")
GOOD = OutputError("o", 1e-4, 1e-3, 1e-3, 1e-2)
CANCELS = OutputError("dk", 0.99, 2e-3, 1.19, 8e-3, 5e-3, "heads=1 seq_q=70 window=1 one_hot")


def test_an_attempt_survives_json_with_every_part_present_or_absent() -> None:
    whole = Attempt(
        IDENTITY,
        {"BM": 64, "swizzle": True},
        failure=Failed(Stage.LIMIT, "too large", "log"),
        resources=Resources(128, 0, 4096, 128, 2, "registers", "ab", Lint(("a branch",), ("calls",))),
        prediction=Prediction(1.5, {"tensor": 1.0}, "tensor", "predicted/1"),
        seconds=0.5,
    )
    for attempt in (whole, Attempt(IDENTITY, {})):
        assert attempt_from(json.loads(json.dumps(to_data(attempt)))) == attempt


def test_a_row_from_before_the_rules_on_machine_code_is_read_without_them() -> None:
    data = to_data(Attempt(IDENTITY, {}, resources=Resources(128, 8, 4096, 128, 2, "registers", "ab")))
    del data["resources"]["lint"]
    result = attempt_from(data).resources
    assert result is not None and result.lint is None
    assert result.flaws == ("8 bytes of registers are spilled",)


def test_an_error_from_before_cases_were_kept_is_read_and_keeps_its_text() -> None:
    old = OutputError("o", 0.09, 0.1, 0.11, 0.4)
    data = to_data(Verdict((old,)))
    assert list(data["errors"][0]) == ["name", "rmse_ratio", "max_abs", "limit", "max_limit"]
    (read,) = verdict_from(data).errors
    assert (read, read.error, read.allowed, read.case) == (old, 0.09, 0.11, "")


@pytest.mark.parametrize("name", ["usual_limit", "case"])
def test_an_error_whose_case_or_usual_limit_is_of_another_type_is_refused(name: str) -> None:
    data = to_data(Verdict((CANCELS,)))
    data["errors"][0][name] = []
    with pytest.raises(ValueError, match=name):
        verdict_from(data)


def test_a_verdict_survives_json() -> None:
    verdict = Verdict((GOOD, CANCELS), ("finding",), ("T=1",))
    assert verdict_from(json.loads(json.dumps(to_data(verdict)))) == verdict


OLD_LINE = (  # as it was stored before later fields existed
    '{"config":{"BT":64,"swizzle":true},"created":"2026-11-21T10:00:00+00:00","evidence":"measured","format":1,'
    '"identity":{"gpu":"H200","implementation":"fast","operator":"scan","options":"-arch=sm_90a","policy":"measured/1",'
    '"problem":{"B":2,"T":1000,"causal":true,"dtype":"bf16"},"source":"5eed","toolkit":"nvrtc 13.4"},"margin":0.03,'
    '"measurement":{"duplicate_of":"","flip_probability":null,"high_us":12.75,"low_us":12.25,"regret_bound":null,'
    '"samples":30,"time_us":12.5},"prediction":{"bottleneck":"mma","cost":3.5,"model":"1","terms":{"mma":2.5}},'
    '"resources":{"ctas_per_sm":2,"limiter":"registers","registers":168,"sass_digest":"ab12","smem_bytes":49152,'
    '"spill_bytes":0,"threads":128},"tried":128,"tuner":"0.1.0","verdict":{"checks":["T=63 seed=1"],"errors":[{"limit":'
    '0.004,"max_abs":0.01,"max_limit":0.1,"name":"o","rmse_ratio":0.001}],"findings":[],"where":"emulator"}}'
)


def test_a_line_from_before_later_fields_is_read() -> None:
    record = from_line(OLD_LINE)
    assert (record.identity.plan, record.resources.lint, record.verdict.errors[0].case) == ("", None, "")
    assert record.measurement == Measurement(12.5, 12.25, 12.75, 30)


def test_later_fields_that_are_unknown_change_no_text() -> None:
    text = to_line(replace(from_line(OLD_LINE), signature=""))
    assert json.loads(text).keys() == json.loads(OLD_LINE).keys()
    assert json.loads(text)["measurement"] == json.loads(OLD_LINE)["measurement"]
    assert sha256(to_line(from_line(text)).encode()).hexdigest() == sha256(text.encode()).hexdigest()
    assert json.loads(to_line(replace(from_line(OLD_LINE), config={"late": 0.0})))["config"] == {"late": 0.0}


@pytest.mark.parametrize("value", ["\x1b[2J", "a\nb", "\u202e", "\ud800"])
def test_a_record_with_a_text_that_is_not_printable_is_refused(value: str) -> None:
    for part, name in (("identity", "gpu"), ("verdict", "where"), ("resources", "limiter"), ("config", "BT")):
        data = json.loads(OLD_LINE)
        data[part][name] = value
        for text in (json.dumps(data), json.dumps(data, ensure_ascii=False)):
            with pytest.raises(StoreError, match="not printable"):
                from_line(text)


def test_a_reason_with_an_escape_sequence_reaches_no_terminal() -> None:
    data = to_data(Attempt(IDENTITY, {"BM": 64}, Failed(Stage.COMPILE, "no \x1b[2J\tway", "log\n")))
    failure = attempt_from(data).failure
    assert failure is not None
    assert (failure.reason, failure.log) == ("no �[2J�way", "log\n")
    for part in ("identity", "config"):
        with pytest.raises(ValueError, match="not printable"):
            attempt_from(data | {part: data[part] | {"gpu": "\x1b[2J"}})
