"""Tests of forks at any moment: parent and child continue, and resources that a child cannot use are refused."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.cupy_double import Driver, asarray, driver
from tuner import dispatcher, operators
from tuner.backends import emulator
from tuner.base.assets import ROOT
from tuner.compiler.render import render
from tuner.errors import MachineError
from tuner.spec.instance import InstanceFields

__all__ = ["driver"]  # a fixture


@pytest.mark.parametrize("forks", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_children_and_parent_go_on_after_forks_under_load(forks: int) -> None:
    command = [sys.executable, "benchmarks/forks.py", "--forks", str(forks)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"{forks} forks: 0 children failed or hung, 0 attempts lost, 0 threads ended\n", done.stderr
    print(done.stderr)


WATCHED = """
import os, signal, threading
from tuner import dispatcher
from tuner.dispatcher import record_watcher

dispatcher.reload()
event, entered, leave = record_watcher._Process.watcher._ended, threading.Event(), threading.Event()


def hold():
    with event._cond:  # as the watching thread and `close` do
        event._flag = ENDED
        entered.set()
        leave.wait()


thread = threading.Thread(target=hold)
thread.start()
entered.wait()
pid = os.fork()
if not pid:
    signal.alarm(60)
    dispatcher.reload()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
leave.set()
"""


@pytest.mark.parametrize("ended", [False, True])
def test_a_child_has_a_watcher_of_its_own(ended: bool) -> None:
    environment = os.environ | {"TUNER_WATCH": "1000"}
    command = [sys.executable, "-c", WATCHED.replace("ENDED", str(ended))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0"], done.stderr


TORN = """
import os, signal, threading
import numpy as np
from tuner import dispatcher
from tuner.base import fork
from tuner.compiler import render
from tuner.dispatcher import on_emulator
from tuner.errors import MachineError

x = np.ones((1, 9, 2, 16), np.float16)
dispatcher.flash_attention(x, x, x)
fork.PATIENCE_S = 0.1
inside, leave = threading.Event(), threading.Event()


def work(guard):
    with guard:
        inside.set()
        leave.wait()


def child(doing="ran a kernel on the emulator"):
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(60)
    try:
        dispatcher.reload()  # so that the kernel is rendered again
        dispatcher.flash_attention(x, x, x)
    except MachineError as error:
        os._exit(3 if f"was forked while a thread {doing}" in str(error) else 4)
    os._exit(0)


for guard, doing in (on_emulator._ONE_CALL, "ran a kernel on the emulator"), (render._RENDERING, "rendered a template"):
    inside.clear()
    leave.clear()
    thread = threading.Thread(target=work, args=(guard,))
    thread.start()
    inside.wait()
    print(child(doing))
    leave.set()
    thread.join()
    print(child())
with on_emulator._ONE_CALL:
    print(child())
"""


def test_a_child_of_a_fork_that_waited_in_vain_raises_an_error_instead_of_hanging() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", TORN], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["3", "0", "3", "0", "0"], done.stderr


WORKERS = """
import multiprocessing, sys
import numpy as np
from tuner import dispatcher


def call(heads):
    x = np.ones((1, 9, heads, 16), np.float16)
    return float(dispatcher.flash_attention(x, x, x)[0].sum())


if __name__ == "__main__":
    print(call(1))
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(call, [1, 2, 3, 4]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_call_kernels_however_they_start(tmp_path: Path, method: str) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "workers.py"), method]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["144.0", "[144.0, 288.0, 432.0, 576.0]"], done.stderr


LOADER = """
import torch
from tuner import dispatcher


class Scores(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.ones(1, 9, 2, 16, dtype=torch.float16)
        return dispatcher.flash_attention(x, x, x)[0].sum() + index


Scores()[0]
for context in ("fork", "spawn") if __name__ == "__main__" else ():
    loader = torch.utils.data.DataLoader(Scores(), num_workers=2, multiprocessing_context=context)
    print(sorted(int(batch) for batch in loader))
"""


def test_workers_of_a_data_loader_call_kernels(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "loader.py").write_text(LOADER)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", str(tmp_path / "loader.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == [str([*range(288, 296)])] * 2, done.stderr


def test_a_child_of_a_process_that_used_the_gpu_is_told_that_it_has_none(driver: Driver) -> None:
    x = np.ones((1, 9, 2, 16), np.float16)
    dispatcher.reload()
    runs = dispatcher.explain("flash_attention", *map(asarray, (x, x, x)))
    instance = operators.instance(InstanceFields(runs.operator, runs.implementation, runs.problem, runs.config))
    driver.know(emulator.build(render(instance, "host"), checked=False))
    dispatcher.flash_attention(*map(asarray, (x, x, x)))
    pid = os.fork()
    if not pid:
        status = 1
        try:
            dispatcher.flash_attention(*map(asarray, (x, x, x)))
        except MachineError as error:
            status = 3 if "forked after its parent used the GPU" in str(error) else 2
            assert dispatcher.flash_attention(x, x, x)[0].sum() == 288  # on the CPU all is well
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    dispatcher.flash_attention(*map(asarray, (x, x, x)))


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
from tuner import dispatcher

try:
    failure = interpreters.run_string(interpreters.create(), "from tuner import dispatcher; dispatcher.reload()")
except interpreters.RunFailedError as error:
    failure = error
print(failure)
"""


def test_a_subinterpreter_is_refused_by_numpy_and_leaves_the_process_alone() -> None:
    code = f"{SUBINTERPRETER}\nimport numpy as np\nx = np.ones((1, 9, 2, 16), np.float16)\n"
    code += "print(dispatcher.flash_attention(x, x, x)[0].sum())"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "cannot load module more than once per process" in done.stdout, done.stderr
    assert done.stdout.split("\n")[-2] == "288.0"
