"""Tests of a run of `gpu.py`: its rows, its time limit, its archive, and missing optional tools."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.base.test_pool import wait_until
from tests.evaluate.measure.test_gpu_device import Runtime, driver, runtime
from tuner.base.assets import ROOT
from tuner.evaluate.measure.gpu_device import Physical

__all__ = ["driver", "runtime"]  # fixtures

BENCHMARKS = ROOT / "benchmarks"
Programs = Callable[[str], Any]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.fixture
def run(programs: Programs, tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield programs("gpu_run").Run(tmp_path / "out", 10.0, stack, small=True, simulate=True, archive=None)


def environment(*first: Path) -> dict[str, str]:
    paths = [*map(str, first), str(ROOT), str(BENCHMARKS), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_a_step_has_a_row_when_it_begins_one_for_what_it_finds_and_one_when_it_ends(run: Any) -> None:
    def work() -> dict[str, Any]:
        run.find(times_us={"wgmma": 2.0})
        assert "finds" in rows(run.out)[-1]  # on the disk before the step goes on
        return {"times_us": {"wgmma": 2.0, "naive": 9.0}}

    assert run.step("defaults", work, 5.0, {"operator": "kda"}, most_s=20.0)
    begins, finds, ends = rows(run.out)
    assert begins == {"begins": "defaults", "may_take_s": 20.0, "operator": "kda"}
    assert finds == {"finds": "defaults", "times_us": {"wgmma": 2.0}}
    assert ends["times_us"] == {"wgmma": 2.0, "naive": 9.0} and ends["may_take_s"] == 20.0
    assert not run.step("defaults", work, 5.0)


def test_what_a_step_found_before_it_failed_stays_known(run: Any, programs: Programs) -> None:
    def work() -> None:
        run.find(found={"naive": "right"})
        raise ValueError("no more")

    run.step("verification", work, 5.0)
    known = programs("gpu_rows").read(run.out)["verification"]
    assert known["found"] == {"naive": "right"} and known["error"] == "ValueError: no more"
    assert run.failed and not run.done("verification")


def test_a_step_that_does_not_fit_does_not_begin_and_is_no_failure(run: Any) -> None:
    assert not run.step("long", lambda: {}, 10 * 60 - 50.0)  # of ten minutes one is not planned
    assert not (run.out / "rows.jsonl").read_text() and not run.failed
    assert "is left for another call" in (run.out / "log.txt").read_text()
    assert run.step("short", lambda: {}, 10 * 60 - 90.0)


CALLER = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from gpu_run import Run
folder = Path(sys.argv[1])
with ExitStack() as stack:
    run = Run(folder / "out", 0.12, stack, small=True, simulate=True, archive=folder / "gpu.tar.gz")
    run.step("quick", lambda: {"summary": "done"}, 0.1)
    run.step("endless", lambda: run.find(found={"a": "right"}) or time.sleep(3600), 0.1, {"operator": "kda"})
"""


def test_when_the_minutes_are_over_what_is_under_way_is_cut_off_and_all_is_in_the_archive(
    tmp_path: Path, programs: Programs
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLER, str(tmp_path)], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "the time is over: endless is interrupted" in done.stderr
    steps = programs("gpu_rows").read(tmp_path / "out")
    assert steps["quick"]["summary"] == "done"
    assert steps["endless"] == {
        "may_take_s": 0.1,
        "operator": "kda",
        "found": {"a": "right"},
        "finished": False,
        "summary": "cut off",
    }
    assert not list(programs("gpu_kills")._archived(tmp_path, tmp_path / "out" / "rows.jsonl"))


def test_what_an_earlier_call_finished_stands_though_a_later_one_was_cut_off(programs: Programs) -> None:
    known = programs("gpu_rows").steps(
        [
            {"begins": "search"},
            {"ends": "search", "summary": "half of it", "finished": False, "tried": 80},
            {"begins": "search"},
            {"finds": "search", "tried": 3},
        ]
    )
    assert known == {"search": {"summary": "half of it", "finished": False, "tried": 80}}


def test_a_comparison_of_another_record_is_done_again_and_stands_until_then(run: Any) -> None:
    for name in ("peers kda T=64, strong_gate", "peers kda T=64, weak_gate", "peers kda T=640, weak_gate"):
        run.step(name, lambda: {"summary": "of the first record"}, 5.0)
    run.reopen("peers kda T=64, ")
    assert [run.done(name) for name in run.rows.steps] == [False, False, True]
    assert all(step["summary"] == "of the first record" for step in run.rows.steps.values())
    assert run.step("peers kda T=64, weak_gate", lambda: {"summary": "of the second"}, 5.0)


WITHOUT = ("sqlalchemy", "alembic", "optuna", "pygments", "vl_convert", "typer", "rich", "threadpoolctl")


@pytest.mark.slow
def test_without_what_measuring_does_not_need_kernels_are_verified_timed_and_compared(tmp_path: Path) -> None:
    for name in WITHOUT:
        (tmp_path / "without" / name).mkdir(parents=True)
        text = f"raise ModuleNotFoundError(\"No module named '{name}'\", name={name!r})\n"
        (tmp_path / "without" / name / "__init__.py").write_text(text)
    out = tmp_path / "out"
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--simulate", "--minutes", "3", "--out", str(out)]
    done = subprocess.run(
        [*command, "--only", "flash_attention"],
        env=environment(tmp_path / "without"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # as a search was not possible
    ends = {row["ends"].partition(" ")[0]: row for row in rows(out) if "ends" in row}
    assert {name for name, row in ends.items() if "error" in row} == {"search"}
    assert "sqlalchemy" in ends["search"]["error"]
    assert "naive" in ends["verification"]["found"] and ends["defaults"]["times_us"]
    assert ends["peers"]["rows"][0]["time_us"]


def test_a_program_that_was_not_imported_yet_needs_no_more_than_measuring_does() -> None:
    blocked = (
        f"import sys\nsys.modules.update(dict.fromkeys({WITHOUT!r}))\nimport gpu, gpu_warm\ngpu.plan([], small=False)"
    )
    subprocess.run([sys.executable, "-c", blocked], env=environment(), check=True)


def test_the_first_row_says_what_is_missing_and_how_to_get_it(run: Any, programs: Programs) -> None:
    steps = programs("gpu_steps")
    steps._PACKAGES = {"numpy": ("numpy", "all"), "nowhere_found": ("nowhere-found", "some tests")}
    result = steps.installed(run)
    assert result["packages"]["numpy"] and not result["packages"]["nowhere_found"]
    assert result["summary"] == "missing: nowhere_found (without it some tests: pip install nowhere-found)"


def test_the_timer_is_asked_on_any_device_and_says_what_an_answer_proves(run: Any, programs: Programs) -> None:
    timer, steps = programs("gpu_timer"), programs("gpu_steps")
    with steps.judges_of_the_timer() as pool:
        for question in timer.QUESTIONS:
            if question.name != "idle":
                result = steps.timed_by_others(run, question, pool)
                assert result["proves"] == question.proves and result["summary"]
    assert timer.floor(run.opener.open())["floor_us"].keys() == {"eager", "graph"}


def test_rates_below_those_of_a_device_s_model_and_timers_that_differ_are_warnings(programs: Programs) -> None:
    warned = programs("gpu_timer").warned
    slow = warned({"copy_gb_s": {"clean flush": 3000.0, "no flush": 3100.0}}, "H200")
    assert "3100 GB/s, but at least 3800" in slow["warning"]
    assert "warning" not in warned({"copy_gb_s": {"no flush": 3100.0}}, "A100")
    assert "warning" not in warned({"copy_gb_s": 4200.0, "tflop_s": 780.0}, "H200")
    assert "650 TFLOP/s, but at least 700" in warned({"tflop_s": 650.0}, "H200")["warning"]
    agreeing = programs("gpu_timer")._agreeing({"ours": 100.0, "do_bench": 102.0}, {"ours": 1755, "do_bench": 1740})
    assert "warning" not in warned(agreeing, "H200")
    assert "4.0% apart" in warned({"apart": 0.04}, "H200")["warning"]


NCU = """==PROF== Connected to process 1
"ID","Process ID","Process Name","Host Name","Kernel Name","Metric Name","Metric Unit","Metric Value"
"""


def test_what_nsight_compute_prints_is_summed_over_the_kernels_of_a_run(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '"{}","1","python","here","kernel","{}","","{}"'
    times = [row.format(i, "gpu__time_duration.sum", "1,000" if i % 2 else "2,500") for i in range(40)]
    clocks = [row.format(i, "sm__cycles_elapsed.avg.per_second", "1,755,000,000") for i in range(40)]
    lines = [line for pair in zip(times, clocks, strict=True) for line in pair]  # twenty runs of two kernels
    (tmp_path / "said").write_text(NCU + "\n".join(lines) + "\n")
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\ncat {tmp_path / 'said'}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert programs("gpu_timer")._by_ncu() == (3.5, 1755)
    (tmp_path / "said").write_text("==ERROR== ERR_NVGPUCTRPERM\n")
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        programs("gpu_timer")._by_ncu()


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_loses_at_most_the_row_in_hand(programs: Programs, tmp_path: Path) -> None:
    for kill in programs("gpu_kills").kills(3, seed=1, folder=tmp_path):
        assert not kill.lost, kill


def test_an_archive_is_packed_when_its_run_is_gone(tmp_path: Path, programs: Programs) -> None:
    (tmp_path / "out").mkdir()
    caller = (
        "import sys, time; from pathlib import Path; from gpu_archive import Keeper; folder = Path(sys.argv[1]);"
        "keeper = Keeper(folder / 'out', folder / 'gpu.tar.gz'); (folder / 'out' / 'rows.jsonl').write_text('{}\\n');"
        "(folder / 'ready').touch(); time.sleep(3600)"
    )
    process = subprocess.Popen([sys.executable, "-c", caller, str(tmp_path)], env=environment())
    wait_until((tmp_path / "ready").exists)
    assert not (tmp_path / "gpu.tar.gz").exists()
    process.kill()
    process.wait()
    assert not list(programs("gpu_kills")._archived(tmp_path, tmp_path / "out" / "rows.jsonl"))


@pytest.mark.usefixtures("runtime")
def test_the_timer_is_asked_through_cupy_s_runtime(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "eventSynchronize", lambda *_: None, raising=False)
    timer, device = programs("gpu_timer"), Physical().open()
    monkeypatch.setattr(timer, "_COPY_BYTES", 4 << 20)
    result = timer.copies(device)["copy_gb_s"]
    assert result.keys() == {"clean flush", "no flush", "dirty flush, plain events"}
    assert result["dirty flush, plain events"] == pytest.approx(result["no flush"], rel=0.5)
    assert timer.floor(device)["floor_us"]["eager"] > 0
    assert timer.ticks(device)["summary"] and timer.monitor(device)["state_us"] > 0
