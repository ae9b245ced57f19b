"""The command line: what it prints, and what it says to bad input: one message, the right exit code, no traceback."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tuner import operators
from tuner.cli import build

HEAD = ["flash_attention", "--gpu", "sm_80", "--head-dim", "40"]
SMALL = [*HEAD, "--budget", "3", "--implementation", "mma_sync", "--quiet"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(build(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which one small search was stored."""
    folder = tmp_path_factory.mktemp("cli")
    db = folder / "tuner.db"
    done = run("search", *SMALL, "--db", db, "--report", folder / "report.html")
    assert done.exit_code == 0, done.output
    return db


@pytest.fixture
def folder_of_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(operators, "__path__", list(operators.__path__))
    monkeypatch.setenv("TUNER_OPERATORS", "")
    yield monkeypatch
    operators._load.cache_clear()
    operators.implementations.cache_clear()


# ---- what it prints


def test_search_prints_the_winner_and_the_reports_path_and_says_that_it_is_predicted(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = run("search", *SMALL, "--db", tmp_path / "tuner.db", "--report", report)
    assert done.exit_code == 0, done.output
    assert "winner (predicted, not validated on sm_80)" in done.stdout
    assert f"report: {report}" in done.stdout
    assert report.read_text().lower().startswith("<!doctype html>")


def test_search_as_json_is_one_object_with_the_record(searched: Path, tmp_path: Path) -> None:
    done = run("search", *SMALL, "--db", searched, "--json", "--report", tmp_path / "r.html")
    (found,) = json.loads(done.stdout)["searches"]
    assert found["evidence"] == "predicted"
    assert found["record"]["verdict"]["errors"]
    assert found["reused"] == found["tried"] == 3


def test_several_values_make_several_problems(tmp_path: Path) -> None:
    options = ["--budget", "1", "--implementation", "naive", "--quiet", "--json"]
    where = ["--db", tmp_path / "tuner.db", "--report", tmp_path / "r.html"]
    done = run("search", "flash_attention", "--gpu", "sm_80", "--head-dim", "8,16", *options, *where)
    assert [each["problem"]["head_dim"] for each in json.loads(done.stdout)["searches"]] == [8, 16]


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
    assert "record of sm_80" in near.stdout


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


def test_verify_says_ok_and_what_it_ran() -> None:
    done = run("verify", *HEAD, "--plain")
    assert done.exit_code == 0
    assert done.stdout.rstrip().endswith("ok")
    assert "seq_q=63 seq_k=200" in done.stdout


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_report_is_written_of_what_is_stored_without_searching(searched: Path, tmp_path: Path, form: str) -> None:
    done = run("report", *HEAD, "--db", searched, "--format", form, "--out", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "r.html").read_text() if form == "html" else done.stdout
    assert "flash_attention" in text


def test_doctor_and_operators_speak_json_too() -> None:
    assert {check["what"] for check in json.loads(run("doctor", "--json").stdout)["checks"]} >= {"Python", "GPU"}
    assert "flash_attention" in [each["name"] for each in json.loads(run("operators", "--json").stdout)]


def test_replay_says_how_near_a_sampler_came_on_a_recorded_space(tmp_path: Path) -> None:
    cache = {f"{a},{b}": {"a": a, "b": b, "time": 1.0 + (a - 4) ** 2 + b} for a in range(8) for b in range(4)}
    recorded = tmp_path / "made_up.json"
    recorded.write_text(
        json.dumps(
            {"tune_params_keys": ["a", "b"], "tune_params": {"a": [*range(8)], "b": [*range(4)]}, "cache": cache}
        )
    )
    done = run("replay", recorded, "--budget", 32, "--seeds", 2, "--json")
    found = json.loads(done.stdout)
    assert found["configs"] == 32
    assert found["fraction_of_optimum"]["32"] == {"mean": 1.0, "p10": 1.0}
    assert "P-score" in run("replay", recorded, "--budget", 8, "--seeds", 2).stdout


def test_every_command_has_help() -> None:
    for command in build().registered_groups:
        done = run(command.name, "flash_attention", "--help")
        assert done.exit_code == 0
        assert "--head-dim" in done.stdout


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "flash_attention", "--gpu", "sm90"], "unknown GPU 'sm90': try sm_90a"),
        (["search", "flash", "--gpu", "sm_80"], "unknown operator 'flash' (known: flash_attention"),
        (["search", *HEAD, "--dtype", "fp64"], "--dtype 'fp64': known: bf16, fp16"),
        (["search", "flash_attention", "--gpu", "sm_80", "--head-dim", "7"], "head_dim 7"),
        (["search", "flash_attention", "--gpu", "sm_80", "--head-dim", "x"], "--head-dim 'x': known: 8, 16, 24"),
        (["search", *HEAD, "--heads", "6", "--kv-heads", "4"], "kv_heads 4 does not divide heads 6"),
        (["search", *HEAD, "--effort", "huge"], "unknown effort 'huge' (known: quick, normal, full)"),
        (["search", *HEAD, "--sampler", "magic"], "unknown sampler 'magic'"),
        (["search", *HEAD, "--implementation", "wmma"], "has no implementation 'wmma' (known: mma_sync, naive, wgmma)"),
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
    done = run("search", *SMALL, "--db", tmp_path / "tuner.db")
    assert done.exit_code == 2
    assert "apt install g++" in done.stderr


def test_a_report_that_cannot_be_written_loses_nothing(searched: Path) -> None:
    done = run("search", *SMALL, "--db", searched, "--report", "/dev/null/report.html")
    assert done.exit_code == 2
    assert "/dev/null" in done.stderr
    assert len(json.loads(run("show", "--db", searched, "--json").stdout)["records"]) == 1


def test_a_template_error_is_told_with_file_and_line(tmp_path: Path, folder_of_operators: pytest.MonkeyPatch) -> None:
    operator = _copy_of_flash_attention(tmp_path, "torn")
    template = operator / "naive.cu.jinja"
    template.write_text(template.read_text() + "\n{{ no_such_name }}\n")
    folder_of_operators.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    done = run("render", "torn", "--gpu", "sm_80", "--implementation", "naive")
    assert done.exit_code == 2
    assert "'no_such_name' is undefined" in done.stderr


def test_an_empty_space_is_told_and_ends_with_exit_code_1(
    tmp_path: Path, folder_of_operators: pytest.MonkeyPatch
) -> None:
    module = _copy_of_flash_attention(tmp_path, "empty") / "naive.py"
    never = "constraints=(Constraint('never', lambda c: c.threads < 0),"
    module.write_text(module.read_text().replace("constraints=(", never))
    folder_of_operators.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    place = ["--db", tmp_path / "tuner.db", "--report", tmp_path / "r.html"]
    done = run("search", "empty", "--gpu", "sm_80", "--implementation", "naive", *place)
    assert done.exit_code == 1, done.output
    assert "no config passed its checks" in done.stderr
    assert "Traceback" not in done.output


def _copy_of_flash_attention(folder: Path, name: str) -> Path:
    """The operator under another name: only its naive implementation."""
    source, target = operators.load("flash_attention").folder, folder / name
    target.mkdir()
    for path in source.iterdir():
        if path.is_file() and not path.name.startswith("mma_sync"):
            text = path.read_text()
            (target / path.name).write_text(text.replace('name="flash_attention"', f'name="{name}"'))
    return target
