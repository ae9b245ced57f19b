"""The search's side of a farm: the Dask scheduler, its workers, and an executor of units."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any
from urllib.parse import urlsplit

from tuner.base.self_closing import Closing
from tuner.errors import MachineError, UsageError
from tuner.farm.resources import NO_GPU, Description, description_in, device_resource
from tuner.farm.worker import perform_here
from tuner.search.work_unit import Unit, UnitResult

_PATIENCE_S = 30.0  # for an answer of the scheduler, then for a worker with the code and the GPU of a search
_SILENCE_S = 2.0  # of that, before the user hears of the wait
_REFRESH_S = 2.0  # between two requests for the list of workers
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Farm(Closing):
    """The workers of a Dask scheduler.

    Raises UsageError for an address that is not safe, and MachineError if Dask is not installed or no scheduler
    answers.
    """

    def __init__(self, address: str, *, insecure: bool = False, patience_s: float = _PATIENCE_S) -> None:
        refuse_unsafe(address, insecure=insecure)
        self.address = address
        self._client = _connected(address, patience_s)
        self._refreshed, self._workers, self._without_preload = float("-inf"), Counter[Description](), 0

    def close(self) -> None:
        self._client.close(timeout=5)

    def workers(self) -> Counter[Description]:
        """The number of workers of each description, at most `_REFRESH_S` old."""
        if time.monotonic() - self._refreshed >= _REFRESH_S:
            infos = self._client.scheduler_info(n_workers=-1)["workers"].values()
            descriptions = (description_in(resource) for info in infos for resource in info["resources"])
            self._workers = Counter(filter(None, descriptions))
            self._without_preload = len(infos) - self._workers.total()
            self._refreshed = time.monotonic()
        return self._workers

    def require(
        self, wanted: Description, report: Callable[[str], None] = lambda _: None, *, patience_s: float = _PATIENCE_S
    ) -> None:
        """Wait for a worker with this code and GPU. Raises MachineError with a list of the workers if none joins."""
        began, reported = time.monotonic(), False
        while not self.workers()[wanted]:
            waited = time.monotonic() - began
            if waited >= patience_s:
                raise MachineError(self._why_none(wanted, patience_s))
            if waited >= _SILENCE_S and not reported:
                report(f"waiting up to {patience_s:g} s for a worker {wanted.with_gpu}")
                reported = True
            time.sleep(0.2)

    def refused(self, wanted: Description) -> list[str]:
        """One sentence for each group of workers that gets no problems because its code differs."""
        return [
            f"{count} of the workers get no problems, because their code differs: theirs is {other.code}, and that of "
            f"this search is {wanted.code}"
            for other, count in self.workers().items()
            if other.code != wanted.code
        ]

    def capacity(self, wanted: Description) -> int:
        return self.workers()[wanted]

    def executor(self, wanted: Description, work: Callable[[Unit], UnitResult] = perform_here) -> Executor:
        """An executor whose units run on workers of this description."""
        return _FarmExecutor(self._client.get_executor(pure=False), wanted, work)

    def _why_none(self, wanted: Description, waited_s: float) -> str:
        codes = {description.code for description in self.workers()}
        same_code = not codes or wanted.code in codes
        workers = [
            f"{count} {description.with_gpu if same_code else f'with {description}'}"
            for description, count in self.workers().items()
        ]
        if self._without_preload:
            workers.append(f"{self._without_preload} started without --preload tuner.farm_worker")
        if same_code:
            missing, advice = wanted.with_gpu, "Start one, see tuner/farm/README.md"
            advice += "" if wanted.gpu == NO_GPU else ", or add --predicted"
        else:
            missing = f"with the code of this search ({wanted.code})"
            advice = "Install the same version on all machines"
        return (
            f"no worker {missing} at {self.address} after {waited_s:g} s; its workers: "
            f"{'; '.join(workers) or 'none'}. {advice}"
        )


class _FarmExecutor(Executor):
    """Submits units as tasks that require the resource of their search."""

    def __init__(self, inner: Executor, wanted: Description, work: Callable[[Unit], UnitResult]) -> None:
        self._inner, self._wanted, self._work = inner, wanted, work

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ARG002  # see `work`
        (unit,) = args
        required = {self._wanted.resource: 1.0} | ({device_resource(unit.device): 1.0} if unit.device else {})
        submit: Callable[..., Future[Any]] = self._inner.submit  # its keywords are those of Dask's Client.submit
        return submit(self._work, unit, resources=required, key=f"{unit.operator} {unit.campaign} {unit.key}")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait=wait, cancel_futures=cancel_futures)


def refuse_unsafe(address: str, *, insecure: bool) -> None:
    """Raise UsageError for plain TCP to another machine: whoever reaches a scheduler can run code on its workers."""
    parts = urlsplit(address)
    if parts.scheme not in ("tls", "tcp") or not parts.hostname:
        raise UsageError(f"--farm {address}: give tls://HOST:PORT, the address of a Dask scheduler")
    if parts.scheme == "tcp" and parts.hostname not in _LOOPBACK and not insecure:
        raise UsageError(
            f"--farm {address}: whoever reaches a scheduler can run code on its workers, so tcp:// is accepted on "
            "this machine only. Use tls:// with certificates, or --insecure-farm in a network that you trust"
        )


def _connected(address: str, patience_s: float) -> Any:
    try:
        import distributed
    except ImportError as error:
        raise MachineError("--farm needs Dask: pip install 'kerntune[farm]'") from error
    dask: Any = distributed  # its functions below have no types
    security = dask.Security(require_encryption=True) if address.startswith("tls:") else None
    try:
        return dask.Client(address, timeout=patience_s, security=security, set_as_default=False)
    except Exception as error:  # the types are many: certificates, handshakes, versions, no answer
        raise MachineError(
            f"no Dask scheduler answers at {address} ({error or type(error).__name__}). Start `dask scheduler`; for "
            "tls:// set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT and …__CLIENT__KEY"
        ) from error
