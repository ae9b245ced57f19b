"""Processes that time on the same GPU, each a real one: they take turns, and none stops another for good."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest

from tests.support.simulated_device import SimulatedDevice, Simulation
from tuner import operators
from tuner.arch import gpu
from tuner.evaluate.measure import gpu_lock
from tuner.evaluate.measure.device import Code, Plan
from tuner.evaluate.measure.gpu_lock import Presence, exclusive, is_held, shared
from tuner.evaluate.measure.messages import TimingRequest, TimingResult
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import Worker
from tuner.spec.instance import Instance

GPU = "0000:1B:00.0"
OPERATOR = operators.load("paged_attention")
NAIVE = operators.implementation("paged_attention", "naive")
PROBLEM = OPERATOR.problem(head_dim=16, batch=1, heads=1, kv_heads=1, max_pages=4)
CODE = Code(Instance.default(OPERATOR, NAIVE, PROBLEM, gpu("sm_80").arch).fields(), b"")
TASK = TimingRequest(CODE, MeasurementPolicy(warm_up_us=100))
TASKS = 8
CALLER = """
import sys
from pathlib import Path
from tuner.evaluate.measure import gpu_lock
gpu_lock.FOLDER = Path(sys.argv[1])
from tests.evaluate.measure import test_exclusive
getattr(test_exclusive, sys.argv[2])(*sys.argv[3:])
"""


@dataclass(frozen=True)
class Noted(Simulation):
    """A device that notes who times on it."""

    journal: str = ""

    def open(self) -> SimulatedDevice:
        return _Noted(self)


class _Noted(SimulatedDevice):
    _loads = 0

    def load(self, code: Code, plan: Plan) -> object:
        self._loads += 1
        return super().load(code, plan)

    def times_us(self, ready: float, launches: int, policy: MeasurementPolicy) -> Sequence[float]:
        with Path(self._simulation.journal).open("a") as file:
            file.write(f"{os.getpid()} {self._loads}\n")
        time.sleep(0.001)
        return super().times_us(ready, launches, policy)


def time_tasks(folder: str, journal: str, bus_id: str) -> None:
    """Once another process is ready to do so, too."""
    with Worker(Noted("sm_80", bus_id=bus_id, journal=journal)) as worker:
        worker.describe()
        (Path(folder) / str(os.getpid())).touch()
        while len(list(Path(folder).iterdir())) < 2:
            time.sleep(0.001)
        assert all(worker.time(TASK).samples for _ in range(TASKS))


def hold() -> None:
    """Until it is killed."""
    with exclusive(GPU):
        present = Presence(GPU)
        print("held", present.others(), flush=True)
        signal.pause()


def started(*arguments: object) -> "subprocess.Popen[str]":
    """A process that calls a function of this file."""
    command = [sys.executable, "-c", CALLER, str(gpu_lock.FOLDER), *map(str, arguments)]
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


@contextmanager
def holder() -> "Iterator[subprocess.Popen[str]]":
    """A process that has the GPU for itself."""
    with started("hold") as process:
        assert process.stdout is not None and process.stdout.readline() == "held 0\n"
        yield process
        process.kill()


@contextmanager
def holder_until_somebody_waits(patch: pytest.MonkeyPatch, *, then: Callable[[], object] = list) -> Iterator[None]:
    tell_once = gpu_lock._tell_once
    with holder() as process:

        def tell(bus_id: str) -> None:
            tell_once(bus_id)
            then()
            process.kill()

        patch.setattr(gpu_lock, "_tell_once", tell)
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_lock, "FOLDER", tmp_path / "gpus")
    gpu_lock._tell_once.cache_clear()
    return tmp_path / "gpus"


def test_two_processes_on_one_gpu_take_turns_at_whole_batches_of_timings_and_say_so_once(tmp_path: Path) -> None:
    (ready := tmp_path / "ready").mkdir()
    both = [started("time_tasks", ready, tmp_path / "journal", GPU) for _ in range(2)]
    results = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    turns = [key for key, _ in groupby((tmp_path / "journal").read_text().splitlines())]
    assert len(turns) == len(set(turns)) == 2 * TASKS
    assert max(words.count("take turns") for _, words in results) == 1, results


@pytest.mark.filterwarnings("ignore:another process times kernels")
def test_a_process_that_is_killed_leaves_the_gpu_to_the_next() -> None:
    with holder() as process:
        process.kill()
        with exclusive(GPU):
            process.wait()  # its files are closed one after the other
            assert Presence(GPU).others() == 0


@pytest.mark.filterwarnings("ignore:another process times kernels")
def test_who_was_alone_just_now_comes_after_who_waits() -> None:
    order = []

    def other() -> None:
        with exclusive(GPU):
            order.append("other")

    waiting = threading.Thread(target=other)
    with exclusive(GPU):
        waiting.start()
        while not is_held(gpu_lock.FOLDER / f"{GPU}.next"):
            time.sleep(0.001)
        order.append("first")
    with exclusive(GPU):
        order.append("first again")
    waiting.join()
    assert order == ["first", "other", "first again"]


@pytest.mark.filterwarnings("ignore:another process times kernels")
def test_those_that_time_nothing_are_there_together_and_who_times_waits_for_them() -> None:
    order, inside = [], threading.Barrier(3)

    def judge() -> None:
        with shared(GPU):
            inside.wait(30)  # which is over when all three are in at once
            inside.wait(30)
            order.append("judged")

    judges = [threading.Thread(target=judge) for _ in range(2)]
    for process in judges:
        process.start()
    inside.wait(30)
    timing = threading.Thread(target=lambda: times(order))
    timing.start()
    while not is_held(gpu_lock.FOLDER / f"{GPU}.next"):
        time.sleep(0.001)
    inside.wait(30)
    for process in (*judges, timing):
        process.join()
    assert order == ["judged", "judged", "timed"]


def test_a_config_is_judged_beside_others_that_are_and_timed_when_they_are_gone() -> None:
    with Worker(Simulation("sm_80", bus_id=GPU)) as worker:
        with shared(GPU):
            assert worker.time(replace(TASK, timed=False)).failure is None
            done: list[TimingResult] = []
            timing = threading.Thread(target=lambda: done.append(worker.time(replace(TASK, judged=False))))
            with pytest.warns(RuntimeWarning, match="take turns"):
                timing.start()
                while not is_held(gpu_lock.FOLDER / f"{GPU}.next"):
                    time.sleep(0.001)
                while gpu_lock._tell_once.cache_info().currsize == 0:
                    time.sleep(0.001)
            assert not done
        timing.join()
    assert done[0].samples


def times(order: list[str]) -> None:
    with exclusive(GPU):
        order.append("timed")


def test_a_file_that_another_user_left_unwritable_is_locked() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        for path in (Path(name, GPU), Path(name, f"{GPU}.next")):
            path.touch(0o444)
        assert locked_by_another_user(Path(name)) == 0


def locked_by_another_user(folder: Path) -> int:
    """The exit code of a process without the rights of the files' owner: 0 where it held the GPU alone."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        gpu_lock.FOLDER = folder
        if not os.getuid():
            os.setuid(65534)
        with exclusive(GPU):
            held = is_held(folder / GPU)
        os._exit(0 if held and not is_held(folder / GPU) else 1)
    finally:
        os._exit(2)


def test_who_waits_says_so_and_two_gpus_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with holder_until_somebody_waits(monkeypatch):
        with exclusive("0000:2B:00.0"), exclusive(""):
            pass
        with pytest.warns(RuntimeWarning, match=f"times kernels on the GPU at {GPU}"), exclusive(GPU):
            pass


@pytest.mark.filterwarnings("ignore:another process times kernels")
def test_a_config_is_not_taken_for_one_that_hangs_because_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time begins when it is asked, and it is asked when nobody else is timed."""
    with Worker(Simulation("sm_80", bus_id=GPU)) as worker:
        worker.describe()
        done, run = [], worker._pool.run
        monkeypatch.setattr(worker._pool, "run", lambda jobs: done.append("asked") or run(jobs))
        with holder_until_somebody_waits(monkeypatch, then=lambda: done.append("waits")):
            assert worker.time(TASK).samples
    assert done == ["waits", "asked", "asked"]  # to judge, and to time


def test_who_takes_turns_is_counted_while_it_lives() -> None:
    present = Presence(GPU)
    assert (present.others(), Presence("0000:2B:00.0").others()) == (0, 0)
    with started("hold") as process:
        assert process.stdout is not None and process.stdout.readline() == "held 1\n"
        assert present.others() == 1
        process.kill()
    next_one = Presence(GPU)
    assert len(list(gpu_lock.FOLDER.glob(f"{GPU} *"))) == 2  # the file of the dead is gone
    assert (present.others(), next_one.others()) == (1, 1)


def test_a_folder_that_cannot_be_written_stops_nobody(folder: Path) -> None:
    folder.write_text("in the way")
    with exclusive(GPU):
        assert Presence(GPU).others() == 0


def test_files_of_other_users_are_locked_and_those_that_lead_elsewhere_are_not(folder: Path, tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        with exclusive(GPU):
            pass
        present = Presence(GPU)
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666}
    assert present.others() == 0
    (folder / "0000:2B:00.0").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "0000:3B:00.0")
    with exclusive("0000:2B:00.0"), exclusive("0000:3B:00.0"):
        assert not (tmp_path / "elsewhere").exists()
