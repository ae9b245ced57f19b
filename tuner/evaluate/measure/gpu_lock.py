"""Processes that time kernels on a GPU take turns: one file lock per GPU, which ends with its holder.

Slices of a GPU share its memory and its clock, so the lock has the name of what they have in common, its PCI bus id.
Nothing here stops anybody: where no file can be made or locked, times are drawn without a lock.

By flock, and not by the library that locks elsewhere in this program: that one knows no lock that several hold, and
refuses files that another user left unwritable, which flock need not write.
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

# One for all users, and not in TMPDIR: batch systems give each job its own.
FOLDER = Path("/tmp/kerntune-gpus")
# Links of others are not followed, nor their pipes awaited.
_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def exclusive(bus_id: str) -> Iterator[None]:
    """No other process holds the GPU, exclusive or shared, while the context is open: timing needs it alone.

    A process that has to wait warns once. Without a bus id there is no lock.
    """
    with _turn(bus_id, fcntl.LOCK_EX):
        yield


@contextmanager
def shared(bus_id: str) -> Iterator[None]:
    """No other process holds the GPU exclusively while the context is open: others may run kernels, none times any."""
    with _turn(bus_id, fcntl.LOCK_SH):
        yield


class Presence:
    """That this process has a GPU open, for others who count its processes: who takes turns disturbs nobody."""

    def __init__(self, bus_id: str) -> None:
        self._bus_id, self._own = bus_id, FOLDER / f"{bus_id} {secrets.token_hex(8)}"
        with suppress(OSError):
            file = _opened(self._own)
            weakref.finalize(self, _leave, file, self._own)  # which a process that is killed leaves to others
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.others()  # a device process is killed in the end: the next one removes the file that it left

    def others(self) -> int:
        """How many other processes have said so, and live."""
        return sum(is_held(path) for path in FOLDER.glob(f"{self._bus_id} *") if path != self._own)


def is_held(path: Path) -> bool:
    """Whether the process that locked a file lives; the file that a dead one left by its presence goes."""
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
            with _locked(FOLDER / f"{bus_id}.next", fcntl.LOCK_EX, bus_id):  # who had it just now comes after who waits
                held.enter_context(_locked(FOLDER / bus_id, kind, bus_id))
        yield


@contextmanager
def _locked(path: Path, kind: int, bus_id: str) -> Iterator[None]:
    with ExitStack() as held:
        with suppress(OSError):  # a folder that cannot be written, or a file system without locks
            file = _opened(path)
            held.callback(os.close, file)  # and with it the lock
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                _tell_once(bus_id)
                fcntl.flock(file, kind)
        yield


def _opened(path: Path) -> int:
    """A file to lock, whoever made it, and whatever their umask was. Raises OSError where there is none to be had."""
    with suppress(FileExistsError):  # what is there is left as it is, for it may be a trap of another user
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)  # for all users, like /tmp itself
    with suppress(FileExistsError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFUL, 0o666)
        os.fchmod(file, 0o666)
        return file
    file = os.open(path, os.O_RDONLY | _CAREFUL)  # a lock needs no more, and others' files may allow no more
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
