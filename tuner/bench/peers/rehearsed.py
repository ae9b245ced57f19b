"""Peers of a device that is not there: they take as long to get ready as real ones, hang, or fall, and are timed."""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from tuner.bench.peers.base import AbsentError, Peer, Run


def _needs_no_gpu(*_: Any) -> Run:
    raise AbsentError("it is rehearsed on a simulated device only")


@dataclass(frozen=True)
class Rehearsed(Peer):
    """`ready_s` go by before it is ready, as while others compile; `ends` says how that ends."""

    prepare: Any = _needs_no_gpu
    ready_s: float = 0.0
    ends: str = "ready"  # or hangs, or falls: the process with it
    slower: float = 2.0  # than a copy of the least bytes

    def get_ready(self) -> None:
        time.sleep(self.ready_s)
        if self.ends == "hangs":
            _hang()
        if self.ends == "falls":
            os.kill(os.getpid(), signal.SIGSEGV)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
