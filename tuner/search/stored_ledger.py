"""The ledger of a measuring session in the store (see `tuner.store.sql.ledger`)."""

import time
from uuid import uuid4

from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.store.sql import Admission, Holder, Store

MOST_DEATHS = 2
_POLL_S = 0.2  # interval at which the configs of other sessions are checked


class StoredLedger:
    """Counts the crashes per config of a GPU in all sessions that share a store. `before` is a file written by older
    versions of this program.
    """

    def __init__(self, store: Store, gpu: str, before: Ledger) -> None:
        self._store, self._gpu, self._before = store, gpu, before
        self._holder = Holder.current()
        self._open: dict[str, str] = {}  # config → its entry

    def banned(self, key: str) -> bool:
        died = sum(entry.died for entry in self._store.entries(self._gpu, key))
        return died >= MOST_DEATHS or self._before.banned(key)

    def began(self, key: str) -> bool:
        """Return whether a config may run now. Waits while as many other sessions run it as it may crash."""
        uuid = uuid4().hex
        while True:
            admission = self._store.enter(self._gpu, key, self._holder, uuid, MOST_DEATHS)
            if admission is not Admission.BUSY:
                break
            time.sleep(_POLL_S)
        if admission is Admission.ENTERED:
            self._open[key] = uuid
        return admission is Admission.ENTERED

    def ended(self, key: str) -> None:
        self._store.leave(self._open.pop(key))

    def died(self, key: str) -> None:
        self._store.bury(self._open.pop(key))

    def forgive_own(self) -> None:
        """Retract all crashes of this session, because the device was broken and not the configs."""
        self._store.leave_all(self._holder)
