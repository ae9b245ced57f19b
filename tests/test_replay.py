"""Replay: recordings read, written and searched."""

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.errors import UsageError
from tuner.replay import Replay, random_search, replay, run
from tuner.replay.files import read, t4
from tuner.replay.recording import Recording, Row, recording

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


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"a": 1}', "\x1f\x8b broken"])
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
    found = run(RECORDING, lambda _, evaluate: [evaluate(i) for i in (failing, best)] and None, 4, 0, noise=False)
    assert found.tolist() == [math.inf, RECORDING.optimum, RECORDING.optimum, RECORDING.optimum]


def test_what_looked_best_is_judged_by_its_recorded_value() -> None:
    rows = [Row({"block": 1}, 1.0, (3.0,)), Row({"block": 2}, 2.0, (2.0,))]
    lucky = recording("lucky", rows)
    found = run(lucky, lambda _, evaluate: [evaluate(i) for i in (0, 1)] and None, 2, 0, noise=True)
    assert found.tolist() == [1.0, 2.0]


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
    assert replay(RECORDING, "gp", 15, range(10), batch=2).score > 0.15


def test_a_replay_repeats_under_its_seeds() -> None:
    first, second = (replay(RECORDING, "gp", 15, (4, 5)).true_values for _ in range(2))
    assert np.array_equal(first, second)
