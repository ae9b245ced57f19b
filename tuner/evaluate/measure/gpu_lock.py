"""Who times on a GPU takes turns with the other processes that do: a file lock a GPU, which dies with its holder.

Slices of a GPU share its memory and its clock, so the lock has the name of what they have in common, its PCI bus id.
Nothing here stops anybody: where no file can be made or locked, times are drawn without a lock.
"""

import secrets
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

# One for all users, and not in TMPDIR: batch systems give each job its own.
FOLDER = Path("/tmp/kerntune-gpus")
_POLL_S = 0.005  # who waits for a lock asks so often


@contextmanager
def alone(bus_id: str) -> Iterator[None]:
    """Nobody else is `alone` on that GPU meanwhile; who has to wait says so once. Without a bus id there is no lock."""
    with ExitStack() as held:
        if bus_id:
            with _locked(FOLDER / f"{bus_id}.next", bus_id):  # who was alone just now comes after who waits here
                held.enter_context(_locked(FOLDER / bus_id, bus_id))
        yield


class Presence:
    """That this process has a GPU open, for others who count its processes: who takes turns disturbs nobody."""

    def __init__(self, bus_id: str) -> None:
        self._bus_id, self._own = bus_id, FOLDER / f"{bus_id} {secrets.token_hex(8)}"
        with suppress(OSError):
            lock = _lock(self._own)
            lock.acquire()
            weakref.finalize(self, _leave, lock, self._own)  # which a process that is killed leaves to others
        self.others()  # a device's process is killed in the end: who comes next clears away what it left

    def others(self) -> int:
        """How many other processes have said so, and live."""
        return sum(_is_held(each) for each in FOLDER.glob(f"{self._bus_id} *") if each != self._own)


@contextmanager
def _locked(path: Path, bus_id: str) -> Iterator[None]:
    with ExitStack() as held:
        with suppress(OSError):  # a folder that cannot be written, or a file system without locks
            lock = _lock(path)
            try:
                held.enter_context(lock.acquire(blocking=False))
            except Timeout:
                _tell_once(bus_id)
                held.enter_context(lock.acquire())
        yield


def _lock(path: Path) -> FileLock:
    """Whoever made its file, and whatever their umask is; links of others are not followed, nor their pipes awaited.

    Raises OSError where there is no folder for it.
    """
    with suppress(FileExistsError):  # what is there is left as it is, for it may be a trap of another user
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)  # for all users, like /tmp itself
    return FileLock(path, mode=0o666, thread_local=False, poll_interval=_POLL_S, fallback_to_soft=False)


def _leave(lock: FileLock, path: Path) -> None:
    with suppress(OSError):
        path.unlink()
    lock.release()


@cache
def _tell_once(bus_id: str) -> None:
    text = f"another process times kernels on the GPU at {bus_id}: the two take turns"
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _is_held(path: Path) -> bool:
    """Whether the process that locked a file lives; a file that it left goes."""
    try:
        with _lock(path).acquire(blocking=False):
            path.unlink()
    except Timeout:
        return True
    except OSError:
        pass
    return False
