"""Processes that time kernels on a GPU take turns: one file lock per GPU, which ends with its holder.

MIG slices share memory and clock, so the lock is named by the PCI bus id that they share. Nothing here is fatal: if no
file can be created or locked, times are measured without a lock.

It uses flock instead of filelock, which has no shared locks and refuses files that another user made read-only, whereas
flock needs no write access.
"""

import fcntl
import os
import secrets
import stat
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

# Shared by all users, and not in TMPDIR, because batch systems give each job its own.
FOLDER = Path("/tmp/kerntune-gpus")
# Do not follow other users' links, and do not block on their pipes.
_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def exclusive(bus_id: str) -> Iterator[None]:
    """Hold the GPU exclusively inside the `with` block, as timing requires.

    A process that has to wait warns once. Without a bus id there is no lock.
    """
    with _turn(bus_id, fcntl.LOCK_EX):
        yield


@contextmanager
def shared(bus_id: str) -> Iterator[None]:
    """Prevent exclusive use of the GPU inside the `with` block: other processes may run kernels, but not time them."""
    with _turn(bus_id, fcntl.LOCK_SH):
        yield


class Presence:
    """Announces that this process uses a GPU, because processes that take turns do not disturb each other's times."""

    def __init__(self, bus_id: str) -> None:
        self._bus_id, self._own = bus_id, FOLDER / f"{bus_id} {secrets.token_hex(8)}"
        with suppress(OSError):
            file = _opened(self._own)
            weakref.finalize(self, _leave, file, self._own)  # a killed process leaves the file for others to remove
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.others()  # a device process is always killed, so the next one removes its file

    def others(self) -> int:
        """Return the number of other running processes that announced themselves."""
        return sum(is_held(path) for path in FOLDER.glob(f"{self._bus_id} *") if path != self._own)


def is_held(path: Path) -> bool:
    """Return whether the process that locked a file is running; remove the file of one that has ended."""
    with ExitStack() as opened:
        try:
            file = _opened(path)
            opened.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if " " in path.name:
            with suppress(OSError):
                path.unlink()
        return False


@contextmanager
def _turn(bus_id: str, kind: int) -> Iterator[None]:
    with ExitStack() as held:
        if bus_id:
            # A process that just held the lock queues behind waiting ones.
            with _locked(FOLDER / f"{bus_id}.next", fcntl.LOCK_EX, bus_id):
                held.enter_context(_locked(FOLDER / bus_id, kind, bus_id))
        yield


@contextmanager
def _locked(path: Path, kind: int, bus_id: str) -> Iterator[None]:
    with ExitStack() as held:
        with suppress(OSError):  # the folder cannot be written, or the file system has no locks
            file = _opened(path)
            held.callback(os.close, file)  # releases the lock, too
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                _tell_once(bus_id)
                fcntl.flock(file, kind)
        yield


def _opened(path: Path) -> int:
    """Open a lock file of any owner and mode. Raises OSError if that fails."""
    with suppress(FileExistsError):  # an existing path is left unchanged, since it may be a trap by another user
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)  # for all users, like /tmp itself
    with suppress(FileExistsError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFUL, 0o666)
        os.fchmod(file, 0o666)
        return file
    file = os.open(path, os.O_RDONLY | _CAREFUL)  # enough for a lock, and other users' files may permit no more
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is no file")
    return file


def _leave(file: int, path: Path) -> None:
    with suppress(OSError):
        path.unlink()
    os.close(file)


@cache
def _tell_once(bus_id: str) -> None:
    text = f"another process times kernels on the GPU at {bus_id}: the two take turns"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
