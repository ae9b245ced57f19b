"""Tests of recordings: reading, writing and searching them."""

import gzip
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tuner import operators
from tuner.base.fields import Fields
from tuner.cli.app import build
from tuner.errors import UsageError
from tuner.results.attempt import Attempt, Failed, Identity, Measurement, Prediction, Stage
from tuner.search.replay import Replay, attempts, random_search, replay, run, t1
from tuner.search.replay.expression import evaluate
from tuner.search.replay.files import read, t4
from tuner.search.replay.history import prior
from tuner.search.replay.recording import Recording, Row, recording
from tuner.spec.problem import canonical
from tuner.store.sql import Store

SIZES, TILES = (16, 32, 64, 128), (1, 2, 3, 4, 5, 6)


def row(block: int, tile: int, read_only: bool) -> Row:
    if block * tile > 512:
        return Row(_config(block, tile, read_only), None, failure="runtime")
    value = 1 + abs(math.log2(block * tile / 192)) + 0.25 * read_only
    return Row(_config(block, tile, read_only), value, (value, 1.02 * value, 0.98 * value))


def _config(block: int, tile: int, read_only: bool) -> dict[str, Any]:
    return {"block": block, "tile": tile, "read_only": read_only, "filter": 15}


ROWS = [row(*values) for values in itertools.product(SIZES, TILES, (False, True)) if values[:2] != (16, 1)]
RECORDING = recording("made_up", ROWS)


def test_the_space_of_a_recording_holds_the_recorded_configs_and_no_others() -> None:
    space = RECORDING.space
    assert space.names == ("block", "tile", "read_only")  # the filter does not vary
    assert {(c.block, c.tile, c.read_only) for c in space} == {
        (r.config["block"], r.config["tile"], r.config["read_only"]) for r in ROWS
    }
    assert space.refusal(space.config_type(block=16, tile=1, read_only=False)) == "not in the recording"


def test_each_config_keeps_its_own_value_whatever_the_order_of_the_rows() -> None:
    shuffled = recording("shuffled", [ROWS[i] for i in np.random.default_rng(0).permutation(len(ROWS))])
    for index, config in enumerate(shuffled.space):
        expected = row(config.block, config.tile, config.read_only).value
        assert shuffled.evaluate(None)(index) == expected


def test_of_two_rows_with_one_config_the_last_counts() -> None:
    again = recording("again", [*ROWS, Row(ROWS[5].config, 0.5)])
    assert len(again.space) == len(RECORDING.space)
    assert again.optimum == 0.5


def test_noise_is_drawn_from_the_recorded_samples() -> None:
    index = int(np.nanargmin(RECORDING.values))
    evaluate = RECORDING.evaluate(np.random.default_rng(0))
    assert {evaluate(index) for _ in range(50)} == set(RECORDING.samples[index])


def test_a_recording_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="no config with a value"):
        recording("broken", [Row({"block": 16}, None, failure="compile")])


def test_a_recording_without_a_choice_is_refused() -> None:
    with pytest.raises(UsageError, match="lone holds one config"):
        recording("lone", [Row({"block": 16}, 1.0), Row({"block": 16}, 2.0)])
    with pytest.raises(UsageError, match="mixed holds configs of unlike parameters"):
        recording("mixed", [Row({"block": 16}, 1.0), Row({"tile": 2}, 2.0)])


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_t4_file_reads_back_as_what_was_written(tmp_path: Path, suffix: str) -> None:
    text = json.dumps(t4(ROWS, "milliseconds")).encode()
    path = tmp_path / f"made_up_T4{suffix}"
    path.write_bytes(gzip.compress(text) if suffix == ".json.gz" else text)
    back = read(path)
    assert back.name == "made_up_T4"
    assert_same(back, RECORDING)


def test_t4_names_the_stage_that_failed() -> None:
    failed = next(entry for entry in t4(ROWS, "milliseconds")["results"] if entry["invalidity"] != "correct")
    assert (failed["invalidity"], failed["measurements"]) == ("runtime", [])


@pytest.mark.parametrize("end", ["}}", ","])  # a run that was stopped leaves its cache open
def test_a_kernel_tuner_cache_reads_as_the_same_recording(tmp_path: Path, end: str) -> None:
    cache = {
        str(i): {**r.config, "time": "RuntimeFailedConfig" if r.value is None else r.value, "times": r.samples}
        for i, r in enumerate(ROWS)
    }
    names = {name: [] for name in ROWS[0].config}
    path = tmp_path / "made_up.json"
    path.write_text(json.dumps({"tune_params": names, "cache": cache}).removesuffix("}}") + end)
    assert_same(read(path), RECORDING)


def assert_same(left: Recording, right: Recording) -> None:
    assert left.space.choices == right.space.choices
    assert np.array_equal(left.space.codes, right.space.codes)
    assert np.array_equal(left.values, right.values, equal_nan=True)
    assert left.samples == right.samples


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", '{"a": 1}', '{"results": [{}]}', '{"cache": [1]}', "\x1f\x8b broken"]
)
def test_a_file_that_is_no_recording_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"notes\.json"):
        read(path)


def test_calculated_random_search_agrees_with_random_searches() -> None:
    rng = np.random.default_rng(0)
    values = np.nan_to_num(RECORDING.values, nan=np.nanmax(RECORDING.values))
    runs = np.minimum.accumulate([rng.permutation(values)[:20] for _ in range(20_000)], axis=1)
    assert random_search(RECORDING, 20) == pytest.approx(runs.mean(axis=0), rel=0.01)


def test_random_search_of_everything_finds_the_optimum() -> None:
    assert random_search(RECORDING, 100)[-1] == pytest.approx(RECORDING.optimum)


def test_a_failure_costs_a_try() -> None:
    failing = int(np.flatnonzero(np.isnan(RECORDING.values))[0])
    best = int(np.nanargmin(RECORDING.values))
    result = run(RECORDING, lambda _, evaluate: [evaluate(i) for i in (failing, best)] and None, 4, 0, noise=False)
    assert result.tolist() == [math.inf, RECORDING.optimum, RECORDING.optimum, RECORDING.optimum]


def test_what_looked_best_is_judged_by_its_recorded_value() -> None:
    rows = [Row({"block": 1}, 1.0, (3.0,)), Row({"block": 2}, 2.0, (2.0,))]
    lucky = recording("lucky", rows)
    result = run(lucky, lambda _, evaluate: [evaluate(i) for i in (0, 1)] and None, 2, 0, noise=True)
    assert result.tolist() == [1.0, 2.0]


def test_a_replay_of_everything_reaches_the_optimum_and_says_when() -> None:
    result = replay(RECORDING, "exhaustive", len(ROWS), range(2), noise=False)
    assert result.mean(len(ROWS)) == result.percentile(len(ROWS), 10) == 1
    assert result.tries_to(0.999) == int(np.nanargmin(RECORDING.values)) + 1


def test_a_fraction_that_most_runs_never_reach_takes_infinitely_many_tries() -> None:
    assert replay(RECORDING, "exhaustive", 2, range(3), noise=False).tries_to(0.99) == math.inf


def test_random_search_scores_about_zero_and_the_gaussian_process_more() -> None:
    rng = np.random.default_rng(0)
    values = np.nan_to_num(RECORDING.values, nan=np.inf)
    runs = np.minimum.accumulate([rng.permutation(values)[:15] for _ in range(20_000)], axis=1)
    assert abs(Replay(RECORDING, "random", runs).score) < 0.02
    assert replay(RECORDING, "gp", 15, range(30), batch=2).score > 0.06


def test_a_replay_repeats_under_its_seeds() -> None:
    first, second = (replay(RECORDING, "gp", 15, (4, 5)).true_values for _ in range(2))
    assert np.array_equal(first, second)


def shifted(row: Row) -> Row:
    """The same kernel on a GPU that is three times as fast, and likes the read-only path."""
    value = None if row.value is None else row.value / 3 - 0.05 * bool(row.config["read_only"])
    return Row(row.config, value)


def test_a_search_elsewhere_leaves_a_prior_that_finds_the_optimum_at_once() -> None:
    past = recording("past", [shifted(row) for row in ROWS])
    cold = replay(RECORDING, "gp", 4, range(5), noise=False)
    warm = replay(RECORDING, "gp", 4, range(5), noise=False, past=past, past_tries=30)
    assert warm.mean(4) > cold.mean(4) + 0.1
    assert warm.mean(4) > 0.95


def test_results_whose_configs_do_not_exist_here_are_left_out_of_a_prior() -> None:
    other = [Row({**row.config, "tile": row.config["tile"] * 16}, row.value) for row in ROWS]
    assert prior(RECORDING, recording("other tiles", other), 20, 0) is None


def test_a_past_of_another_kernel_is_refused() -> None:
    other = recording("other", [Row({"rows": rows, "tile": 2}, float(rows)) for rows in range(1, 12)])
    with pytest.raises(UsageError, match="the configs have no block, read_only, tile: another kernel"):
        prior(RECORDING, other, 8, 0)


T1 = {
    "ConfigurationSpace": {
        "TuningParameters": [
            {"Name": "block", "Type": "int", "Values": "[16 * i for i in range(1, 3)] + [64, 128]"},
            {"Name": "tile", "Type": "uint", "Values": "[1,2,3,4,5,6]"},
            {"Name": "read_only", "Type": "bool", "Values": "[false, true]"},
        ],
        "Conditions": [
            {"Parameters": ["block", "tile"], "Expression": "block * tile >= 32 && !(block == 16 and tile == 1)"}
        ],
    },
    "KernelSpecification": {},
}


def described(tmp_path: Path, document: Any = T1) -> Path:
    path = tmp_path / "kernel_T1.json"
    path.write_text(json.dumps(document))
    return path


def test_a_t1_file_reads_as_the_space_that_it_describes(tmp_path: Path) -> None:
    space = t1.read(described(tmp_path))
    assert {tuple(getattr(config, name) for name in space.names) for config in space} == {
        values for values in itertools.product(SIZES, TILES, (False, True)) if values[:2] != (16, 1)
    }
    refused = space.config_type(block=16, tile=1, read_only=True)
    assert space.refusal(refused) == "block * tile >= 32 && !(block == 16 and tile == 1)"


def test_in_the_space_of_a_t1_file_what_was_not_recorded_has_failed(tmp_path: Path) -> None:
    (tmp_path / "few.json").write_text(json.dumps(t4(ROWS[:10], "milliseconds")))
    few = read(tmp_path / "few.json", t1.read(described(tmp_path)))
    assert len(few.space) == len(ROWS)
    assert np.count_nonzero(~np.isnan(few.values)) == 10
    assert few.optimum == min(row.value for row in ROWS[:10] if row.value is not None)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("Conditions", 0, "Expression"), "block * width > 3", "'width' is not a parameter"),
        (("Conditions", 0, "Expression"), "__import__('os').abort()", "is not arithmetic, comparison or logic"),
        (("TuningParameters", 0, "Values"), "range(10 ** 12)", "a range of 1,000,000,000,000 values is too long"),
        (("Conditions", 0, "Expression"), "block <", "cannot compute 'block <'"),
        (("TuningParameters", 0, "Type"), "complex", "type 'complex' of block"),
        (("TuningParameters", 0, "Values"), "[16, sizes]", "'sizes' has no meaning"),
        (("TuningParameters",), [{"Name": "block"}], "KeyError 'Type' in its ConfigurationSpace"),
    ],
)
def test_a_broken_t1_file_is_refused_with_the_part_that_is_broken(
    tmp_path: Path, path: tuple[Any, ...], value: Any, message: str
) -> None:
    document = json.loads(json.dumps(T1))
    place = document["ConfigurationSpace"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(UsageError, match=re.escape(message)):
        t1.read(described(tmp_path, document))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 ** n % 5 // 2", 1),
        ("1 <= n < 4 and n not in [2, 4]", True),
        ("n != 3 || !(n == 3)", False),
        ("min(n, 7, 2) + max(1, n) + abs(-n) + int(n / 2)", 9),
        ("n if n > 5 else -n", -3),
        ("n == 0 or 6 % n == 0", True),
        ("list(range(1, n)) + [k << 1 for k in range(2)]", [1, 2, 0, 2]),
    ],
)
def test_expressions_of_python_and_c_are_computed(text: str, value: Any) -> None:
    result = evaluate(text, {"n": np.array(3)}.__getitem__)
    assert np.array_equal(result, value)


def attempt(config: Fields, time_us: float | None, policy: str = "device/1") -> Attempt:
    identity = Identity("scale", "naive", "{}", "A100", "digest", "-O3", "nvrtc 13.0", policy)
    if time_us is None:
        return Attempt(identity, config, failure=Failed(Stage.VERIFY, "wrong"))
    return Attempt(identity, config, measurement=Measurement(time_us, time_us, time_us, 5))


def test_our_attempts_exported_as_t4_can_be_replayed(tmp_path: Path) -> None:
    tried = [attempt({"BT": 16}, 9.5), attempt({"BT": 32}, 7.0), attempt({"BT": 64}, None)]
    document = attempts.document(tried)
    (tmp_path / "ours.json").write_text(json.dumps(document))
    assert [entry["invalidity"] for entry in document["results"]] == ["correct", "correct", "correctness"]
    assert read(tmp_path / "ours.json").optimum == 7.0


def test_what_was_not_run_is_not_exported() -> None:
    spared = replace(attempt({"BT": 64}, None), failure=Failed(Stage.SPARED, "not run"))
    assert [row.value for row in attempts.rows([attempt({"BT": 16}, 9.5), spared])] == [9.5]


def test_predicted_costs_are_exported_as_costs_and_not_as_times() -> None:
    predicted = Attempt(attempt({}, 1.0).identity, {"BT": 16}, prediction=Prediction(3.5, {}, "DRAM", "model/1"))
    (entry,) = attempts.document([predicted])["results"]
    assert entry["objectives"] == ["predicted_cost"]
    assert entry["measurements"] == [{"name": "predicted_cost", "value": 3.5, "unit": ""}]


def test_attempts_of_several_policies_are_not_written_into_one_file() -> None:
    with pytest.raises(UsageError, match="do not compare: naive for A100 by device/1; naive for A100 by device/2"):
        attempts.document([attempt({"BT": 16}, 1.0), attempt({"BT": 32}, 1.0, policy="device/2")])


def test_the_export_command_writes_the_attempts_at_a_problem(tmp_path: Path) -> None:
    operator = operators.load("flash_attention")
    problem = canonical(operator.problem(head_dim=64))
    identity = Identity("flash_attention", "naive", problem, "sm_80", "digest", "-O3", "nvrtc 13.0", "predicted/1")
    tried = [Attempt(identity, {"threads": n}, prediction=Prediction(1.0 * n, {}, "fp32", "m/1")) for n in (32, 64)]
    with Store.open(tmp_path / "tuner.db") as store:
        store.append(tried, None)
    words = ["export", "flash_attention", "--gpu", "sm_80", "--head-dim", "64", "--db", str(tmp_path / "tuner.db")]
    done = CliRunner().invoke(build(), [*words, "--out", str(tmp_path / "ours.json")])
    assert done.exit_code == 0, done.output
    assert read(tmp_path / "ours.json").values.tolist() == [32.0, 64.0]


def test_the_replay_command_takes_a_space_from_t1_and_a_history_from_another_gpu(tmp_path: Path) -> None:
    for name, rows in (("here", ROWS), ("there", [shifted(row) for row in ROWS])):
        (tmp_path / f"{name}.json").write_text(json.dumps(t4(rows, "milliseconds")))
    words = ["replay", tmp_path / "here.json", "--space", described(tmp_path), "--history", tmp_path / "there.json"]
    words += ["--history-tries", 20, "--budget", 5, "--seeds", 2, "--json"]
    done = CliRunner().invoke(build(), [str(word) for word in words])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["history"] == {"recording": "there", "tries": 20}
    assert document["configs"] == len(ROWS)
    assert document["fraction_of_optimum"]["5"]["mean"] > 0.9
