"""Fork a process at random moments while its other threads launch kernels, compile, read new records and write to a
database: does every child work, and does the process go on?

    python benchmarks/forks.py --forks 1000            # about 15 minutes on two busy cores

Every child calls a kernel on the emulator, compares its output, compiles a kernel for a GPU and stores an attempt. A
child that does not finish within `--patience` seconds prints the stacks of its threads. The exit code is 1 if a child
or a thread hung or failed, or if an attempt was lost.
"""

import argparse
import faulthandler
import itertools
import os
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from tuner.results.attempt import Attempt, Evidence, Identity, Prediction, Resources
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict
from tuner.store.sql import Store

PROBLEM, PAUSE_S = "{}", 0.001
_EVERY = 20  # attempts for a record


def attempt(number: int) -> Attempt:
    identity = Identity("scan", "fast", PROBLEM, "sm_80", "5eed", "-arch=sm_80", "nvrtc 13.4", "predicted/1")
    used, cost = Resources(32, 0, 0, 128, 16, "threads", "5a55"), Prediction(3.5, {"mma": 2.5}, "mma", "1")
    return Attempt(identity, {"number": number}, None, used, cost)


def write(store: Store, number: int) -> None:
    """Store an attempt, and sometimes a record, which the watching thread then reads."""
    store.append([attempt(number)])
    if number % _EVERY == 0:
        tried, verdict = attempt(number), Verdict((OutputError("o", 0.001, 0.01, 0.004, 0.1),))
        about = (tried.resources, tried.prediction, None, 0.03, 128, "0.1.0", "2026-11-21T10:00:00+00:00")
        store.promote(TuningRecord(tried.identity, tried.config, Evidence.PREDICTED, verdict, *about))


def call(heads: int = 1) -> None:
    from tuner import dispatcher

    x = np.ones((1, 9, heads, 16), np.float16)
    o, _ = dispatcher.flash_attention(x, x, x)
    if not (o == 1).all():  # the average of equal values
        raise AssertionError(f"attention over ones is {o}")


def compile_(number: int) -> None:
    from tuner import dispatcher

    dispatcher.warmup("flash_attention", {"head_dim": 8 * (1 + number % 3), "seq_q": 64}, gpu="sm_80")
    dispatcher.reload()  # so that the same machine code is looked up, loaded and rendered again


class Threads:
    """Threads that repeat their work until `stop`; their rounds, and the errors that ended them."""

    def __init__(self, works: dict[str, Callable[[int], object]]) -> None:
        self.rounds: Counter[str] = Counter()
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=work, daemon=True) for work in works.items()]
        for thread in self._threads:
            thread.start()
        self.wait_for_a_round()

    def _repeat(self, name: str, work: Callable[[int], object]) -> None:
        try:
            for number in itertools.count(1):
                work(number)
                self.rounds[name] = number
                if self._stop.is_set():
                    return
                time.sleep(PAUSE_S)
        except Exception:
            self.errors.append(f"{name}: {traceback.format_exc()}")

    def wait_for_a_round(self, patience_s: float = 300.0) -> None:
        """Return when each thread has finished another round. Raises AssertionError if one does not."""
        before, deadline = Counter(self.rounds), time.monotonic() + patience_s
        while len(self.rounds) < len(self._threads) or any(self.rounds[name] == before[name] for name in self.rounds):
            if self.errors or time.monotonic() > deadline:
                faulthandler.dump_traceback()
                raise AssertionError("\n".join(self.errors) or f"a thread hangs: {dict(self.rounds)}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def child(number: int, store: Store, patience_s: float) -> NoReturn:
    faulthandler.dump_traceback_later(patience_s, exit=True)
    status = 1
    try:
        call()
        compile_(number)
        call(1 + number % 3)
        store.append([attempt(-number)])
        status = 0
    except BaseException:
        print(f"child {number}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=1000)
    parser.add_argument("--together", type=int, default=4, help="children at one time")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds after which a child counts as hung")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # a call without a record warns
    with tempfile.TemporaryDirectory(prefix="tuner-forks-") as folder:
        os.environ |= {"TUNER_DB": f"{folder}/tuner.db", "TUNER_MISSES": f"{folder}/misses.jsonl", "TUNER_WATCH": "0.1"}
        return forked(options.forks, options.together, options.patience, random.Random(options.seed), Path(folder))


def forked(forks: int, together: int, patience_s: float, rng: random.Random, folder: Path) -> int:
    store = Store.open(folder / "tuner.db")
    began = time.monotonic()
    call()
    works = {"launch": lambda number: call(1 + number % 3), "compile": compile_}
    threads = Threads({**works, "write": partial(write, store)})
    statuses: list[int] = []
    running: set[int] = set()
    slowest = 0.0

    def reap() -> None:
        pid, status = os.wait()
        running.remove(pid)
        statuses.append(os.waitstatus_to_exitcode(status))

    for number in range(1, forks + 1):
        time.sleep(rng.uniform(0, 0.05))
        start = time.monotonic()
        if not (pid := os.fork()):
            child(number, store, patience_s)
        slowest = max(slowest, time.monotonic() - start)
        running.add(pid)
        while len(running) >= together:
            reap()
    while running:
        reap()
    threads.wait_for_a_round()
    threads.stop()
    stored = {stored.attempt.config["number"] for stored in store.attempts("scan")}
    lost = len(set(range(-forks, 0)) - stored) + len(set(range(1, threads.rounds["write"] + 1)) - stored)
    failed, took = sum(map(bool, statuses)), time.monotonic() - began
    print(f"{forks} forks: {failed} children failed or hung, {lost} attempts lost, {len(threads.errors)} threads ended")
    print(f"{took:.0f} s; the slowest fork waited {slowest:.2f} s; rounds: {dict(threads.rounds)}", file=sys.stderr)
    print(*threads.errors, *store.check(), sep="\n", file=sys.stderr)
    return int(bool(failed or lost or threads.errors or store.check()))


if __name__ == "__main__":
    sys.exit(main())
