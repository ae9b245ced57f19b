"""The client of a farm: the scheduler's workers, and an executor that runs units on them."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any
from urllib.parse import urlsplit

from tuner.base.self_closing import Closing
from tuner.errors import MachineError, UsageError
from tuner.farm.resources import Description, described, of_device
from tuner.farm.worker import perform_here
from tuner.search.work_unit import Unit, UnitResult

_PATIENCE_S = 30.0  # for a worker with the search's GPU
_LOOK_S = 2.0  # interval at which the list of workers is refreshed
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Farm(Closing):
    """The workers of a Dask scheduler. Raises UsageError for an unsafe address, MachineError without Dask or if no
    scheduler answers.
    """

    def __init__(self, address: str, *, insecure: bool = False, patience_s: float = _PATIENCE_S) -> None:
        refuse_unsafe(address, insecure=insecure)
        self.address, self._patience_s = address, patience_s
        self._client = _connected(address, patience_s)
        self._looked, self._seen = float("-inf"), Counter[Description]()

    def close(self) -> None:
        self._client.close(timeout=5)

    def workers(self) -> Counter[Description]:
        """Return the number of workers per description, which may be some seconds old."""
        if time.monotonic() - self._looked >= _LOOK_S:
            infos = self._client.scheduler_info(n_workers=-1)["workers"].values()
            descriptions = (described(resource) for info in infos for resource in info["resources"])
            self._seen = Counter(description for description in descriptions if description)
            self._strangers = len(infos) - self._seen.total()
            self._looked = time.monotonic()
        return self._seen

    def require(self, wanted: Description) -> None:
        """Raise MachineError, with a list of the workers, if after some time no worker has this code and GPU."""
        deadline = time.monotonic() + self._patience_s
        while not self.workers()[wanted]:
            if time.monotonic() >= deadline:
                raise MachineError(self._why_nobody(wanted))
            time.sleep(0.2)

    def refused(self, wanted: Description) -> list[str]:
        """Return one line for each group of workers that receives no tasks because its code differs."""
        return [
            f"{count} of the workers are left out: they have other code ({other.code}, and this is {wanted.code})"
            for other, count in self.workers().items()
            if other.code != wanted.code
        ]

    def capacity(self, wanted: Description) -> int:
        return self.workers()[wanted]

    def executor(self, wanted: Description, work: Callable[[Unit], UnitResult] = perform_here) -> Executor:
        """Runs units on the workers with this description."""
        return _FarmExecutor(self._client.get_executor(pure=False), wanted, work)

    def _why_nobody(self, wanted: Description) -> str:
        lines = [f"{count} × {description}" for description, count in self.workers().items()]
        if self._strangers:
            lines.append(f"{self._strangers} × started without `--preload tuner.farm_worker`")
        here = "; ".join(lines) or "none"
        same_code = any(description.code == wanted.code for description in self.workers())
        reason = f"has a GPU {wanted.gpu}" if same_code else "has the code of this search"
        return (
            f"no worker at {self.address} {reason} after {self._patience_s:g} s: needed is {wanted}; workers are {here}"
        )


class _FarmExecutor(Executor):
    """Submits units as tasks that require the resource of suitable workers."""

    def __init__(self, inner: Executor, wanted: Description, work: Callable[[Unit], UnitResult]) -> None:
        self._inner, self._wanted, self._work = inner, wanted, work

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ARG002  # see `work`
        (unit,) = args
        asked = {self._wanted.resource: 1.0} | ({of_device(unit.device): 1.0} if unit.device else {})
        submit: Callable[..., Future[Any]] = self._inner.submit  # which accepts the arguments of Dask's own submit
        return submit(self._work, unit, resources=asked, key=f"{unit.operator} {unit.campaign} {unit.key}")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait=wait, cancel_futures=cancel_futures)


def refuse_unsafe(address: str, *, insecure: bool) -> None:
    """Raise UsageError: who can reach a scheduler can run code on its workers, so remote schedulers require TLS."""
    parts = urlsplit(address)
    if parts.scheme not in ("tls", "tcp") or not parts.hostname:
        raise UsageError(f"--farm {address}: give tls://HOST:PORT, the address of a Dask scheduler")
    if parts.scheme == "tcp" and parts.hostname not in _LOOPBACK and not insecure:
        raise UsageError(
            f"--farm {address}: tcp:// is for this machine alone, since whoever reaches the scheduler runs code on all "
            "workers: use tls:// with certificates, or --insecure-farm in a network that you trust"
        )


def _connected(address: str, patience_s: float) -> Any:
    try:
        import distributed
    except ImportError as error:
        raise MachineError("--farm needs Dask: pip install 'kerntune[farm]'") from error
    dask: Any = distributed  # the rest of Dask is untyped
    security = dask.Security(require_encryption=True) if address.startswith("tls:") else None
    try:
        return dask.Client(address, timeout=patience_s, security=security, set_as_default=False)
    except Exception as error:  # many types: missing certificates, a failed handshake, another version, no scheduler
        raise MachineError(
            f"no Dask scheduler answers at {address} ({error or type(error).__name__}): start `dask scheduler`, and "
            "for tls:// name certificates by DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT and …__CLIENT__KEY"
        ) from error
