"""Peers for a simulated device: they take as long to prepare as real ones, hang or crash, and are timed."""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from tuner.bench.peers.base import AbsentError, Peer, Run


def _needs_no_gpu(*_: Any) -> Run:
    raise AbsentError("it exists only on a simulated device")


@dataclass(frozen=True)
class Rehearsed(Peer):
    """A simulated peer that takes `ready_s` seconds to prepare; `ends` selects the outcome."""

    prepare: Any = _needs_no_gpu
    ready_s: float = 0.0
    ends: str = "ready"  # ready, hangs, or falls (crashes the process)
    slower: float = 2.0  # slowdown relative to a copy with the minimum traffic

    def get_ready(self) -> None:
        time.sleep(self.ready_s)
        if self.ends == "hangs":
            _hang()
        if self.ends == "falls":
            os.kill(os.getpid(), signal.SIGSEGV)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
