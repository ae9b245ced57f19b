"""Tests of the command line: its output, and for invalid input one message and the right exit code."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tuner import __version__, operators
from tuner.backends import gpu as devices
from tuner.backends.emulator import compiler
from tuner.base.fields import formatted
from tuner.cli.app import build
from tuner.cli.registry import COMMANDS
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.results.attempt import Evidence, Measurement
from tuner.results.final_race import FinalRace, Lap, Runner
from tuner.results.verdict import Verdict
from tuner.search.request import code_of
from tuner.spec.problem import from_fields, to_fields
from tuner.store.sql import Store

HEAD = ["flash_attention", "--gpu", "sm_80", "--head-dim", "40"]
ALONE = ["--workers", "1"]  # the tests have the other cores
SMALL = [*HEAD, "--budget", "3", "--implementation", "mma_sync", "--quiet", *ALONE]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(build(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def search_of(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder with the database and report of one small search, and its output."""
    folder = tmp_path_factory.mktemp("cli")
    return folder, run("search", *SMALL, "--db", folder / "tuner.db", "--report", folder / "report.html")


@pytest.fixture(scope="module")
def searched(search_of: tuple[Path, Any]) -> Path:
    """A database in which one small search was stored."""
    return search_of[0] / "tuner.db"


@pytest.fixture
def folder_of_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(operators, "__path__", list(operators.__path__))
    monkeypatch.setenv("TUNER_OPERATORS", "")
    yield monkeypatch
    operators._load.cache_clear()
    operators.implementations.cache_clear()


def test_search_prints_the_winner_and_the_reports_path_and_says_that_it_is_predicted(
    search_of: tuple[Path, Any],
) -> None:
    folder, done = search_of
    report = folder / "report.html"
    assert done.exit_code == 0, done.output
    assert "winner (predicted, not validated on sm_80)" in done.stdout
    assert f"report: {report}" in done.stdout
    assert report.read_text().lower().startswith("<!doctype html>")


def test_search_as_json_is_one_object_with_the_record(searched: Path, tmp_path: Path) -> None:
    done = run("search", *SMALL, "--db", searched, "--json", "--report", tmp_path / "r.html")
    (document,) = json.loads(done.stdout)["searches"]
    assert document["evidence"] == "predicted"
    assert document["record"]["verdict"]["errors"]
    assert document["reused"] == document["tried"] == 3


def test_several_values_make_several_problems(tmp_path: Path) -> None:
    options = ["--budget", "1", "--implementation", "naive", "--quiet", "--json", *ALONE]
    where = ["--db", tmp_path / "tuner.db", "--report", tmp_path / "r.html"]
    done = run("search", "flash_attention", "--gpu", "sm_80", "--head-dim", "8,16", *options, *where)
    assert [load["problem"]["head_dim"] for load in json.loads(done.stdout)["searches"]] == [8, 16]


CSV = "head_dim, seq_q, causal\n8, 64, true\n8, 300, true\n"
LINES = '{"head_dim": 8, "seq_q": 64, "causal": true}\n\n{"head_dim": "8", "seq_q": 300, "causal": true}\n'
ARRAY = '[{"head_dim": 8, "seq_q": 64, "causal": true},\n {"head_dim": 8, "seq_q": 300, "causal": true}]'


@pytest.mark.parametrize(("name", "text"), [("p.csv", CSV), ("p.jsonl", LINES), ("p.json", ARRAY)])
def test_a_file_of_problems_is_one_search_with_one_report_and_a_portfolio(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    options = ["--gpu", "sm_80", "--heads", "2", "--budget", "2", "--implementation", "naive", "--quiet", "--json"]
    where = ["--db", tmp_path / "tuner.db", "--report", tmp_path / "r.html", *ALONE]
    done = run("search", "flash_attention", "--problems", tmp_path / name, *options, *where)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    problems = [search["problem"] for search in document["searches"]]
    assert [(problem["seq_q"], problem["causal"], problem["heads"]) for problem in problems] == [
        (64, True, 2),
        (300, True, 2),
    ]
    (portfolio,) = document["portfolios"]
    assert portfolio["evidence"] == "predicted"
    assert all(place["regret"] is not None for place in portfolio["places"])
    assert "Portfolio: head_dim=8" in (tmp_path / "r.html").read_text()


def test_several_problems_end_in_a_table_of_winners_and_their_portfolio(tmp_path: Path) -> None:
    options = ["--head-dim", "8", "--seq-q", "64,300", "--budget", "2", "--implementation", "naive", "--quiet"]
    where = ["--db", tmp_path / "tuner.db", "--report", tmp_path / "r.html", *ALONE]
    done = run("search", "flash_attention", "--gpu", "sm_80", *options, *where)
    assert "winners (predicted, not validated on sm_80)" in done.stdout
    assert "portfolio for head_dim=8: 1 config for 2 problems, at most 0.0% behind the best" in done.stdout
    assert re.search(r"^seq_q=64 seq_k=64 +1 +0\.0% +\d\.\d%$", done.stdout, re.MULTILINE)
    assert "if it were not listed (predicted)" in done.stdout
    with Store.open(tmp_path / "tuner.db") as store:
        attempts = store.attempts("flash_attention")
    assert len({stored.attempt.identity.source for stored in attempts}) < len(attempts)  # each is compiled once
    again = ["--head-dim", "8", "--seq-q", "64,300", "--db", tmp_path / "tuner.db", "--format", "json"]
    stored = json.loads(run("report", "flash_attention", "--gpu", "sm_80", *again).stdout)
    assert len(stored["portfolios"][0]["places"]) == 2


def test_show_lists_the_record(searched: Path) -> None:
    done = run("show", "--db", searched, "--json")
    (record,) = json.loads(done.stdout)["records"]
    assert record["identity"]["operator"] == "flash_attention"
    assert "predicted" in run("show", "--db", searched).stdout


def test_explain_says_which_record_serves(searched: Path) -> None:
    done = run("explain", *HEAD, "--db", searched, "--json")
    assert json.loads(done.stdout)["record"]["identity"]["gpu"] == "sm_80"
    near = run("explain", *HEAD, "--seq-q", "100", "--db", searched)
    assert near.exit_code == 0
    assert "record of near problem on sm_80: seq_q=4096 for 100" in near.stdout
    assert "to tune it: tuner search" in near.stdout
    assert "to tune it further: tuner search" in run("explain", *HEAD, "--db", searched).stdout


def test_explain_names_the_constraint_that_refuses_a_config(searched: Path) -> None:
    done = run("explain", *HEAD, "--db", searched, "--config", "BM=16,warps=8", "--implementation", "mma_sync")
    assert "refused: a warp owns 16 or 32 rows of Q" in done.stdout
    assert "combinations are valid" in done.stdout


def test_render_prints_cuda_for_the_gpu_and_for_the_emulator() -> None:
    for target in ("cuda", "host"):
        done = run("render", *HEAD, "--target", target)
        assert done.exit_code == 0
        assert 'extern "C" __global__' in done.stdout


def test_inspect_prints_registers_spills_and_residency() -> None:
    done = run("inspect", *HEAD, "--json")
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["spill_stores"] == 0
    assert kernel["registers"] > 0
    assert kernel["ctas"] >= 1


def test_inspect_prints_columns_of_tensor_memory_where_a_kernel_holds_some() -> None:
    asked = ("inspect", "flash_attention", "--head-dim", "64", "--gpu", "B200", "--implementation")
    (kernel,) = json.loads(run(*asked, "tcgen05", "--json").stdout)["kernels"]
    printed = run(*asked, "tcgen05").stdout
    assert "tensor columns" in printed and str(kernel["tensor_columns"]) in printed
    assert "tensor columns" not in run(*asked, "mma_sync").stdout


def test_inspect_says_what_each_term_of_the_prediction_stands_for() -> None:
    done = run("inspect", *HEAD)
    (launch,) = json.loads(run("inspect", *HEAD, "--json").stdout)["predicted"]
    assert f"predicted cost ({launch['model']}): a rank, not a time" in done.stdout
    assert f"{launch['bottleneck']} binds" in done.stdout
    assert re.search(r"^in flight +\d+%  waiting for loads", done.stdout, re.MULTILINE)
    assert re.search(r"^cost +100%", done.stdout, re.MULTILINE)


def test_inspect_says_which_rules_on_machine_code_are_broken() -> None:
    config = [word for setting in ("BN=32", "overlap=0", "ping_pong=false") for word in ("--config", setting)]
    hopper = ["flash_attention", "--gpu", "sm_90a", "--head-dim", "16", "--implementation", "wgmma", *config]
    assert "BROKEN 18 of the loop's 18 exponentials run with no wgmma in flight" in run("inspect", *hopper).stdout
    assert json.loads(run("inspect", *hopper, "--json").stdout)["lint"]["unchecked"] == []


def test_verify_says_ok_and_what_it_ran() -> None:
    done = run("verify", *HEAD, "--plain")
    assert done.exit_code == 0
    assert done.stdout.rstrip().endswith("ok")
    assert "seq_q=63 seq_k=200" in done.stdout
    errors = done.stdout.partition("errors against float64")[2]
    assert re.search(r"^o .* seq_q=\d+ seq_k=\d+ \w+$", errors, re.MULTILINE)


@pytest.mark.parametrize("form", ["html", "md"])
def test_report_is_written_of_what_is_stored_without_searching(searched: Path, tmp_path: Path, form: str) -> None:
    done = run("report", *HEAD, "--db", searched, "--format", form, "--out", tmp_path / "report")
    assert done.exit_code == 0, done.output
    assert "flash_attention" in (tmp_path / "report").read_text()


def test_a_report_that_is_no_page_goes_to_stdout_where_no_place_is_named(searched: Path) -> None:
    done = run("report", *HEAD, "--db", searched, "--format", "json")
    assert json.loads(done.stdout)["problems"]


@pytest.fixture
def measured(searched: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """(a database of the same configs, as if they had been timed; the record's config, the slowest, in its order)."""
    place, code = tmp_path / "tuner.db", code_of(operators.load("flash_attention"))
    with Store.open(searched) as predicted, Store.open(place) as store:
        for time_us, stored in enumerate(predicted.attempts("flash_attention"), start=10):
            identity = replace(stored.attempt.identity, policy=MeasurementPolicy().name)
            timed = Measurement(time_us, time_us, time_us, 12)
            (row,) = store.append([replace(stored.attempt, identity=identity, measurement=timed)])
            store.append_verdict(row, Verdict((), checks=("on the device",)), code)
        (record,) = predicted.records("flash_attention")
        winner = replace(record, identity=identity, config=stored.attempt.config, measurement=timed)
        store.promote(replace(winner, evidence=Evidence.MEASURED))
        another = replace(identity, source="of an earlier version")
        for key in (identity, another):  # the race that settled the record, and one that settled another
            runner = Runner(key.implementation, winner.config, key.source)
            where = key.operator, key.problem, key.gpu, key.policy
            store.append_race(FinalRace(*where, (runner,), 0, ((Lap(12.0, 1755, 4, 61),), (Lap(12.0, 1740, 4, 61),))))
    kind = operators.implementation("flash_attention", "mma_sync").config
    return place, to_fields(from_fields(kind, stored.attempt.config))


def test_a_report_is_of_what_was_measured_where_anything_was(measured: tuple[Path, dict[str, Any]]) -> None:
    place, config = measured
    (reported,) = json.loads(run("report", *HEAD, "--db", place, "--format", "json").stdout)["problems"]
    assert reported["evidence"] == "measured"
    assert list(reported["record"]["config"].items()) == list(config.items())
    assert reported["race"]["contenders"][0]["source"] == reported["record"]["identity"]["source"]
    assert [lap["sm_mhz"] for (lap,) in reported["race"]["rounds"]] == [1755, 1740]


def test_show_tells_the_time_of_a_measured_record_and_its_choices_in_their_order(
    measured: tuple[Path, dict[str, Any]],
) -> None:
    place, config = measured
    shown = run("show", "--db", place).stdout
    assert formatted(config) in shown and "measured 12.0 us" in shown


def test_doctor_and_operators_speak_json_too() -> None:
    assert {check["what"] for check in json.loads(run("doctor", "--json").stdout)["checks"]} >= {"Python", "GPU"}
    assert "flash_attention" in [load["name"] for load in json.loads(run("operators", "--json").stdout)]


def test_operators_says_all_about_one_that_is_named() -> None:
    done = run("operators", "kda")
    assert "gate_dtype" in done.stdout and "[batch, seq_len, heads, key_dim]" in done.stdout
    assert "linear_attention" not in done.stdout
    assert run("operators", "kdaa").exit_code == 2


def test_replay_says_how_near_a_sampler_came_on_a_recorded_space(tmp_path: Path) -> None:
    cache = {f"{a},{b}": {"a": a, "b": b, "time": 1.0 + (a - 4) ** 2 + b} for a in range(8) for b in range(4)}
    recorded = tmp_path / "made_up.json"
    recorded.write_text(
        json.dumps(
            {"tune_params_keys": ["a", "b"], "tune_params": {"a": [*range(8)], "b": [*range(4)]}, "cache": cache}
        )
    )
    done = run("replay", recorded, "--budget", 32, "--seeds", 2, "--json")
    document = json.loads(done.stdout)
    assert document["configs"] == 32
    assert document["fraction_of_optimum"]["32"] == {"mean": 1.0, "p10": 1.0}
    assert "P-score" in run("replay", recorded, "--budget", 8, "--seeds", 2).stdout


def test_every_command_has_help() -> None:
    for command in COMMANDS:
        done = run(command.name, *(["flash_attention"] if command.per_operator else []), "--help")
        assert done.exit_code == 0
        assert "--head-dim" in done.stdout or not command.per_operator
        assert command.help.split(".")[0][:40] in done.stdout


def test_bench_for_another_gpu_predicts_and_says_that_nothing_was_timed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run("bench", "streaming_attention", "--gpu", "sm_80", "--seq-q", "2048..8192", "--out", page)
    assert "Ahead (predicted): streaming_attention/" in done.stdout
    assert done.exit_code == 0, done.output
    assert "nothing was timed: the tables are predictions for sm_80" in done.stderr
    dense = [line.split()[0] for line in done.stdout.splitlines() if "flash_attention/" in line]
    assert dense == ["2048", "4096", "8192"]  # it is ahead nowhere
    assert "Predicted for sm_80: nothing was timed." in page.read_text()


def test_bench_as_json_never_mixes_evidence(tmp_path: Path) -> None:
    done = run("bench", "kda", "--gpu", "H200", "--json", "--out", tmp_path / "page.html")
    (document,) = json.loads(done.stdout)
    assert document["evidence"] == "predicted"
    assert document["peers"] == ["fla chunk_kda", "fla fused_recurrent_kda"]
    assert {name for row in document["rows"] for name in row if "time" in name} <= {"predicted_time"}


@pytest.mark.skipif(devices.available(), reason="this machine has a GPU")
def test_bench_where_no_gpu_is_prints_predictions_and_fails(tmp_path: Path) -> None:
    done = run("bench", "kda", "--out", tmp_path / "page.html")
    assert done.exit_code == 2
    assert "predicted for H200, nothing was timed" in " ".join(done.stdout.split())
    assert "error: this machine has no GPU, and nothing was timed" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", '{"head_dim": 8}\n{"head_dim": 8,}\n', "p.jsonl, line 2: not JSON"),
        ("p.json", "[1, 2]", "p.json, problem 1: 1 is no problem: write {"),
        ("p.csv", "head_dim,seq_q\n8\n", "p.csv, line 2: it does not have the 2 columns of line 1"),
        ("p.csv", "head_dim\n", "p.csv names no problem"),
        ("p.csv", "head_dim,head_dim\n8,16\n", "p.csv, line 1: there are several columns 'head_dim'"),
        ("p.csv", "head_dim,colour\n8,red\n", "p.csv, line 2: flash_attention has no field 'colour' (known: head_dim"),
        ("p.csv", "head_dim,heads\n8,2\n", "p.csv, line 2: --heads is an option of this command, too"),
        ("p.csv", "head_dim,causal\n8,perhaps\n", "p.csv, line 2: causal 'perhaps': give true or false"),
        ("p.csv", "head_dim\n8\n\n9\n", "p.csv, line 4: head_dim 9"),
        ("p.jsonl", '{"head_dim": 8}\n\n{"head_dim": 8.5}\n', "p.jsonl, line 3: --head-dim '8.5'"),
        ("p.json", '[{"head_dim": 8}, {"head_dim": 9}]', "p.json, problem 2: head_dim 9"),
        ("p.json", "[" * 100_000, "p.json: not JSON that can be read"),
        ("p.jsonl", f'{{"head_dim": {"9" * 5000}}}', "p.jsonl, line 1: not JSON that can be read"),
        ("p.csv", f'"{"x" * 200_000}"', "p.csv: not CSV"),
    ],
)
def test_a_file_of_problems_that_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    given = ["--gpu", "sm_80", "--heads", "4", "--problems", tmp_path / name, "--db", tmp_path / "tuner.db"]
    done = run("search", "flash_attention", *given)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not (tmp_path / "tuner.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["search", "flash_attention", "--gpu", "sm90"],
            "unknown GPU 'sm90': did you mean sm_90a? `tuner gpus` lists all",
        ),
        (
            ["search", "flash", "--gpu", "sm_80"],
            "'flash': did you mean flash_attention or flash_attention_backward? `tuner operators`",
        ),
        (["explain", *HEAD, "--seq-q", "512..128"], "--seq-q 512..128: give LO..HI with 0 < LO <= HI"),
        (["search", *HEAD, "--seq-q", ","], "--seq-q ',': give at least one value"),
        (["bench", "kda", "--inputs", "gates"], "inputs 'gates': kda has strong_gate, weak_gate"),
        (["search", *HEAD, "--dtype", "fp64"], "dtype fp64: flash_attention supports bf16, fp16, fp32"),
        (["search", "flash_attention", "--gpu", "sm_80", "--head-dim", "7"], "head_dim 7"),
        (["search", "flash_attention", "--gpu", "sm_80", "--head-dim", "x"], "--head-dim 'x': give a whole number"),
        (["search", *HEAD, "--heads", "6", "--kv-heads", "4"], "kv_heads 4 does not divide heads 6"),
        (["search", *HEAD, "--effort", "huge"], "unknown effort 'huge' (known: quick, normal, full)"),
        (["search", *HEAD, "--sampler", "magic"], "unknown sampler 'magic'"),
        (["search", *HEAD, "--seed", "-5"], "seed -5: give 0 to 2147483647"),
        (["search", *HEAD, "--budget", str(10**20)], "tries: give at most 2147483647"),
        (["search", *HEAD, "--l2", "hot"], "L2 'hot': must be cold or warm"),
        (["search", *HEAD, "--implementation", "wmma"], "has no implementation 'wmma': did you mean wgmma"),
        (["search", *HEAD, "--db", "/dev/null/x.db"], "/dev/null"),
        (["render", *HEAD, "--config", "BM"], "--config 'BM': give name=value with a name among BM"),
        (["render", *HEAD, "--config", "BM=wide"], "--config BM=wide: not a whole number"),
        (["render", *HEAD, "--config", "BM=17"], "refuses this config: BM=17 is not among"),
        (["render", *HEAD, "--target", "rocm"], "--target 'rocm': give cuda or host"),
        (
            ["render", "flash_attention", "--gpu", "sm_80", "--head-dim", "8,16"],
            "looks at one problem, and 2 were given",
        ),
        (["report", *HEAD, "--format", "pdf"], "--format 'pdf': give one of html, md, json"),
        (["search", *HEAD, "--problems", "/dev/null/none"], "cannot read the problems in /dev/null/none"),
        (["show", "nothing"], "unknown operator 'nothing'"),
        (["replay", "/dev/null"], "/dev/null"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    place = [] if "--db" in arguments or arguments[0] == "replay" else ["--db", str(tmp_path / "tuner.db")]
    done = run(*arguments, *place)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.output


def test_a_report_of_nothing_says_to_search_first(tmp_path: Path) -> None:
    done = run("report", *HEAD, "--db", tmp_path / "empty.db")
    assert done.exit_code == 1
    assert "search first" in done.stderr


def test_a_corrupt_database_is_named_and_left_alone(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    db.write_bytes(b"not a database at all" * 400)
    done = run("search", *SMALL, "--db", db)
    assert done.exit_code == 2
    assert str(db) in done.stderr
    assert db.read_bytes() == b"not a database at all" * 400


def test_without_gxx_a_search_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CXX", "no-such-compiler")
    compiler.compiler.cache_clear()
    done = run("search", *SMALL, "--db", tmp_path / "tuner.db")
    assert done.exit_code == 2
    assert "no g++ found at 'no-such-compiler'" in done.stderr
    assert "apt install g++" in done.stderr
    with Store.open(str(tmp_path / "tuner.db")) as store:
        assert not store.attempts("flash_attention")  # it is said before anything is tried


def test_a_search_without_any_time_says_that_nothing_was_tried(tmp_path: Path) -> None:
    how = ["--seconds", 0, "--no-resume", "--graph", "--l2", "warm"]
    done = run("search", *SMALL, *how, "--db", tmp_path / "tuner.db", "--report", tmp_path / "r.html")
    assert done.exit_code == 1, done.output
    assert "nothing valid found (0 tried; the budget of 0 s is used up)" in done.stdout
    assert "no config was tried; the report says why" in done.stderr


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_tried(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    done = run("search", *SMALL, "--db", db, "--report", "/dev/null/report.html")
    assert done.exit_code == 2
    assert "cannot write the report to /dev/null/report.html" in done.stderr
    assert not db.exists()


def test_an_export_that_cannot_be_written_is_one_message(searched: Path) -> None:
    done = run("export", *HEAD, "--db", searched, "--out", "/dev/null/x")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: Not a directory for /dev/null/x: name another place")


def test_a_template_error_is_told_with_file_and_line(tmp_path: Path, folder_of_operators: pytest.MonkeyPatch) -> None:
    operator = _copy_of_flash_attention(tmp_path, "torn")
    template = operator / "naive/kernel.cu.jinja"
    template.write_text(template.read_text() + "\n{{ no_such_name }}\n")
    folder_of_operators.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    done = run("render", "torn", "--gpu", "sm_80", "--implementation", "naive")
    assert done.exit_code == 2
    assert "'no_such_name' is undefined" in done.stderr


def test_a_field_without_a_default_must_be_given_or_named_in_the_file(
    tmp_path: Path, folder_of_operators: pytest.MonkeyPatch
) -> None:
    module = _copy_of_flash_attention(tmp_path, "wanting") / "problem.py"
    module.write_text(re.sub(r"(head_dim: int = static\([^)]*?), default=\w+", r"\1", module.read_text()))
    folder_of_operators.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    done = run("render", "wanting", "--gpu", "sm_80")
    assert done.exit_code == 2
    assert "--head-dim is missing: give it, or name head_dim in every line of --problems FILE" in done.stderr
    (tmp_path / "p.jsonl").write_text('{"head_dim": 8}')
    named = ["--problems", tmp_path / "p.jsonl", "--implementation", "naive", "--db", tmp_path / "tuner.db"]
    assert "head_dim=8" in run("explain", "wanting", "--gpu", "sm_80", *named).output


def test_an_empty_space_is_told_and_ends_with_exit_code_1(
    tmp_path: Path, folder_of_operators: pytest.MonkeyPatch
) -> None:
    module = _copy_of_flash_attention(tmp_path, "empty") / "naive/implementation.py"
    never = "constraints=(Constraint('never', lambda c: c.threads < 0),"
    module.write_text(module.read_text().replace("constraints=(", never))
    folder_of_operators.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    place = ["--db", tmp_path / "tuner.db", "--report", tmp_path / "r.html"]
    done = run("search", "empty", "--gpu", "sm_80", "--implementation", "naive", *place)
    assert done.exit_code == 1, done.output
    assert "no config was tried; the report says why" in done.stderr
    assert re.search("no config +of naive is left by its constraints: 'never' refuses", done.stdout)
    assert "Traceback" not in done.output


def test_help_shows_defaults_and_choices_that_stand_in_brackets() -> None:
    shown = run("search", "flash_attention", "--help").stdout
    assert "[bf16|fp16|fp32]" in shown
    assert "[default: 16]" in shown
    assert "one a" in shown  # of --workers: folded between words


def test_help_names_every_flag_of_the_largest_problem_whole() -> None:
    kda_fields = operators.load("kda").problem.__dataclass_fields__
    shown = run("render", "kda", "--help").stdout
    assert all(f"--{name.replace('_', '-')} " in shown for name in kda_fields)


def test_the_version_needs_no_command() -> None:
    assert run("--version").stdout == f"tuner {__version__}\n"


def test_help_lists_search_first() -> None:
    shown = run("--help").stdout
    assert shown.index(" search ") < shown.index(" show ") < shown.index(" doctor ")


def test_a_problem_is_spelled_by_the_fields_that_make_it(searched: Path) -> None:
    none = ["--db", searched.with_name("none.db")]
    assert "to tune it: tuner search flash_attention --gpu sm_80 --head-dim 40\n" in run("explain", *HEAD, *none).stdout
    shared = run("explain", *HEAD, "--heads", 32, "--kv-heads", 16, *none).stdout
    assert "to tune it: tuner search flash_attention --gpu sm_80 --head-dim 40 --heads 32 --kv-heads 16\n" in shared
    assert " head_dim=40  " in run("show", "--db", searched).stdout


@pytest.mark.usefixtures("folder_of_operators")
def test_a_report_of_attempts_of_other_code_says_that_they_are_stored(tmp_path: Path) -> None:
    operator = _copy_of_flash_attention(tmp_path, "edited")
    operators.add_folder(tmp_path)
    place = ["edited", "--gpu", "sm_80", "--head-dim", "8", "--db", tmp_path / "tuner.db"]
    result = run("search", *place, "--budget", 1, "--quiet", "--report", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    template = operator / "naive/kernel.cu.jinja"
    template.write_text(template.read_text() + "\n// edited\n")
    done = run("report", *place)
    assert done.exit_code == 1
    assert "only attempts of other code, cost models or compilers (1) are stored about edited head_dim=8" in done.stderr


def _copy_of_flash_attention(folder: Path, name: str) -> Path:
    """The operator under another name: only its naive implementation."""
    source, target = operators.load("flash_attention").folder, folder / name
    shutil.copytree(source / "naive", target / "naive", ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("operator", "problem", "arguments", "cases"):
        text = (source / f"{part}.py").read_text()
        (target / f"{part}.py").write_text(text.replace('name="flash_attention"', f'name="{name}"'))
    return target
