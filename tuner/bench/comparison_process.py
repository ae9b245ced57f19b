"""One process for many comparisons, so that peers import, compile and tune only once."""

import resource
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner import operators
from tuner.base import journal
from tuner.base.pool import Limits, Lost, Pool
from tuner.base.self_closing import Closing
from tuner.bench import events, peers
from tuner.bench.comparison import Comparison, Row
from tuner.bench.peers import Peer
from tuner.bench.timing_process import Meeting, late, meet
from tuner.errors import MachineError, UsageError
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.gpu_lock import exclusive
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import DeviceOpener
from tuner.spec.operator import Operator

PATIENCE_S = 600.0  # includes the time in which frameworks compile and tune their kernels
_TRIES = 4  # each try excludes the peer that crashed the process
_LEAST_S = 5.0  # minimum for another try; peers that need more are excluded
_GRACE_S = 20.0  # beyond the time of a meeting, for a slow last round
_ENOUGH = 3  # number of rounds after which an interrupted race is not repeated


class Venue(Closing):
    """A context manager around the process, which starts with a comparison, and again after a crash."""

    def __init__(self, opener: DeviceOpener) -> None:
        self._opener = opener
        memory = resource.getrlimit(resource.RLIMIT_AS)[1]  # CUDA maps the whole memory of the machine
        self._pool: Pool[Meeting, None] = Pool(meet, workers=1, limits=Limits(memory_bytes=memory))

    def close(self) -> None:
        """End the process and release its device memory; the next comparison starts another one."""
        self._pool.close()

    def compare(
        self,
        code: Code,
        policy: MeasurementPolicy | None = None,
        *,
        context: tuple[Code, ...] = (),
        kind: str | None = None,
        seed: int = 0,
        patience_s: float = PATIENCE_S,
        into: Path | None = None,
        guests: tuple[Peer, ...] = (),
    ) -> Comparison:
        """Time our kernel, `context`, a plain copy, every available peer and `guests` on inputs of a kind.

        If any contender has many launches, each is timed eagerly and in a CUDA graph. A peer that crashes the process,
        or exceeds its own time limit, is excluded from the next try. After `patience_s` no peer is prepared and no
        round starts: the rounds so far are the comparison. Events are appended to `into`, for `events.comparison_of`.
        Raises MachineError if there is no result, and UsageError for an unknown kind.
        """
        kind = inputs_kind(operators.load(code.instance.operator), kind)
        policies = _policies(code, policy or MeasurementPolicy())
        with tempfile.TemporaryDirectory() as folder:
            path = into or Path(folder) / "journal"
            begin = path.stat().st_size if path.exists() else 0
            meeting = Meeting(code, context, self._opener, policies, kind, seed, path, guests=guests)
            with exclusive(self._opener.bus_id):  # peers also time kernels to select one of theirs
                self._meet(meeting, begin, time.monotonic() + patience_s)
            comparison = events.comparison_of(journal.read(path, begin))
        assert comparison is not None, "there is a comparison, or an error was raised"
        return comparison

    def _meet(self, meeting: Meeting, begin: int, deadline: float) -> None:
        """Try until a race completes or times out; a peer that crashes the process leaves time for the others."""
        lost: dict[str, str] = {}
        ready: tuple[str, ...] = ()
        for turn in range(1, _TRIES + 1):
            seconds = max(deadline - time.monotonic(), _LEAST_S)
            answer = self._try(replace(meeting, seconds=seconds, lost=dict(lost), ready=ready))
            happened = journal.read(meeting.journal, begin)
            if answer is None or events.rounds(happened) >= _ENOUGH:
                return
            ready, name = events.peers(happened)
            if name:
                lost[name] = _why(answer)
                events.Teller(meeting.journal).stays_out(Row(name, "lost", lost[name]))
            if turn == _TRIES or time.monotonic() > deadline + _GRACE_S:
                raise MachineError(f"the comparison failed ({answer.reason}): {answer.log[-2000:]}")

    def _try(self, meeting: Meeting) -> Lost | None:
        """Try in the process of earlier meetings; if that fails, in a new process with all of its memory."""
        if self._pool.pids():
            with suppress(MachineError):
                return self._ask(meeting)
        return self._ask(meeting)

    def _ask(self, meeting: Meeting) -> Lost | None:
        for _, answer in self._pool.run([meeting], meeting.seconds + _GRACE_S):
            return answer
        return None


def compare(code: Code, opener: DeviceOpener, policy: MeasurementPolicy | None = None, **options: Any) -> Comparison:
    """Run one comparison in a new process; see `Venue.compare`."""
    with Venue(opener) as venue:
        return venue.compare(code, policy, **options)


def inputs_kind(operator: Operator[Any], kind: str | None) -> str:
    """Return the requested kind of inputs, or the operator's first. Raises UsageError for an unknown kind."""
    if kind not in (None, *operator.input_kinds):
        raise UsageError(f"inputs {kind!r}: {operator.name} has {', '.join(operator.input_kinds)}")
    return kind or operator.input_kinds[0]


def _why(lost: Lost) -> str:
    if not late(lost.log):
        return f"it crashed the process: {lost.reason}"
    main = lost.log.rpartition("hread 0x")[2]  # the last thread in faulthandler's output
    last = next((line.strip() for line in main.splitlines() if line.startswith("  File ")), "")
    return f"it was not prepared in time; last seen at {last}"


def _policies(code: Code, policy: MeasurementPolicy) -> tuple[MeasurementPolicy, ...]:
    """Return the policy's launch mode, plus the other one if a plan or a peer has several launches."""
    several = any(peer.many_launches for peer in peers.of(code.instance.operator))
    if len(operators.instance(code.instance).plan().launches) == 1 and not several:
        return (policy,)
    return policy, replace(policy, launch="graph" if policy.launch == "eager" else "eager")
