"""Tests of worker processes that crash, hang, exhaust memory or lose their caller."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.patience import GENEROUS_S, given_up_soon
from tuner.base.assets import ROOT
from tuner.base.pool import Limits, Lost, Pool
from tuner.errors import MachineError

CALLER = """
import signal
from tests.base.test_pool import obey
from tuner.base.pool import Pool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
with Pool(obey, workers=2) as pool:
    for _ in pool.run(["pid", "hang", "hang"]):
        print(*pool.pids(), flush=True)
"""


def obey(job: str | int) -> object:
    """Perform the job."""
    match job:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            print("going", flush=True)
            os._exit(3)
        case "hang":
            time.sleep(3600)
        case "gobble":
            return len(bytearray(2 << 30))
        case "raise":
            raise ValueError("bad job")
        case "pid":
            return os.getpid()
        case "threads":
            return os.environ["OPENBLAS_NUM_THREADS"]
        case "device":
            return os.environ["CUDA_VISIBLE_DEVICES"]
    return job


def fail_to_start() -> None:
    os._exit(7)


def refuse_to_start() -> None:
    raise MachineError("no compiler here")


def answers(jobs: list[str | int], limits: Limits | None = None, workers: int = 2) -> dict[str | int, object]:
    with Pool(obey, workers=workers, limits=limits) as pool:
        return dict(pool.run(jobs))


def alive(pid: int) -> bool:
    """Return whether any thread of the process is running; a zombie does not count."""
    try:
        zombie = "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
        return not zombie or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


def wait_until(claim: Callable[[], bool], patience_s: float = GENEROUS_S) -> None:
    end = time.monotonic() + patience_s
    while not claim():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_every_job_is_answered() -> None:
    assert answers(list(range(20))) == {job: job for job in range(20)}


def test_workers_have_the_variables_that_a_pool_gives_them() -> None:
    with Pool(obey, workers=1, environment={"CUDA_VISIBLE_DEVICES": "none"}) as pool:
        assert dict(pool.run(["device"])) == {"device": "none"}


def test_workers_start_in_a_folder_whose_files_are_named_like_modules_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "operator.py").write_text("raise ImportError('not the module that was asked for')\n")
    monkeypatch.chdir(tmp_path)
    assert answers(["a job"]) == {"a job": "a job"}


def test_no_job_starts_no_worker() -> None:
    with Pool(obey) as pool:
        assert list(pool.run([])) == [] and pool.pids() == ()


def test_workers_outlive_a_run() -> None:
    with Pool(obey, workers=1) as pool:
        first, second = dict(pool.run(["pid"])), dict(pool.run(["pid"]))
    assert first == second


def test_a_crash_costs_its_own_job_and_names_the_signal() -> None:
    result = answers([1, "crash", 2, 3])
    assert isinstance(result["crash"], Lost) and "SIGSEGV" in result["crash"].reason
    assert {job: result[job] for job in (1, 2, 3)} == {1: 1, 2: 2, 3: 3}


def test_what_a_lost_worker_printed_is_kept() -> None:
    lost = answers(["exit"])["exit"]
    assert lost == Lost("the process ended with exit code 3: going", "going\n")


def test_a_hanging_job_is_given_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up_soon(monkeypatch, lambda job: job == "hang", 0.5)
    assert answers([1, "hang", 2]) == {1: 1, 2: 2, "hang": Lost("no answer within 0.5 s")}


def test_a_job_has_the_time_of_the_limits() -> None:
    assert answers(["hang"], Limits(timeout_s=0.5)) == {"hang": Lost("no answer within 0.5 s")}


def test_a_job_that_takes_too_much_memory_is_lost_and_its_worker_replaced() -> None:
    result = answers(["gobble", 1], Limits(memory_bytes=1 << 30), workers=1)
    assert isinstance(result["gobble"], Lost) and "more than 1 GiB" in result["gobble"].reason
    assert result[1] == 1


def test_an_exception_of_the_function_reaches_the_caller_with_its_traceback() -> None:
    with pytest.raises(ValueError, match="bad job") as caught:
        answers(["raise"])
    assert "in obey" in caught.value.__notes__[0]


def test_an_exception_of_warming_up_reaches_the_caller() -> None:
    with pytest.raises(MachineError, match="no compiler here"), Pool(obey, warm=refuse_to_start) as pool:
        list(pool.run([1]))


def test_workers_that_never_start_are_an_error_and_not_a_loop() -> None:
    with pytest.raises(MachineError, match=r"do not start .*exit code 7"), Pool(obey, warm=fail_to_start) as pool:
        list(pool.run([1]))


def test_an_idle_worker_that_was_killed_is_replaced() -> None:
    with Pool(obey, workers=1) as pool:
        first = dict(pool.run(["pid"]))["pid"]
        os.kill(pool.pids()[0], signal.SIGKILL)
        wait_until(lambda: not alive(int(str(first))))
        second = dict(pool.run(["pid"]))["pid"]
    assert isinstance(second, int) and second != first


def test_leaving_a_run_early_kills_what_it_had_begun_and_the_pool_goes_on() -> None:
    with Pool(obey, workers=2) as pool:
        for job, _ in pool.run([1, "hang", 2]):
            if job == 2:
                break
        assert dict(pool.run([5, 6])) == {5: 5, 6: 6}


def test_workers_compute_with_one_thread() -> None:
    assert answers(["threads"]) == {"threads": "1"}


def test_jobs_are_taken_only_as_workers_become_free() -> None:
    taken = []

    def jobs() -> Iterator[int]:
        for job in range(50):
            taken.append(job)
            yield job

    with Pool(obey, workers=2) as pool:
        next(iter(pool.run(jobs())))
    assert len(taken) <= 4


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_no_worker_is_left_when_its_caller_is(how: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert caller.stdout
    pids = {int(pid) for pid in caller.stdout.readline().split()}
    assert len(pids) == 2
    caller.send_signal(how)
    caller.communicate(timeout=GENEROUS_S)
    wait_until(lambda: not any(map(alive, pids)))
