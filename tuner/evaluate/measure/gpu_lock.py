"""Who times on a GPU takes turns with the other processes that do: a file lock a GPU, which dies with its holder.

Slices of a GPU share its memory and its clock, so the lock has the name of what they have in common, its PCI bus id.
Nothing here stops anybody: where no file can be made or locked, times are drawn without a lock.
"""

import fcntl
import os
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

# One for all users, and not in TMPDIR: batch systems give each job its own.
FOLDER = Path("/tmp/kerntune-gpus")
# Reading is enough for a lock, and another user's file gives no more; nor are his links followed, or his pipes awaited.
_NOT_FOLLOWED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


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
        self._bus_id, self._own = bus_id, FOLDER
        with suppress(OSError):
            _make_folder()
            file, hidden = tempfile.mkstemp(dir=FOLDER, prefix=".")
            self._own = FOLDER / f"{bus_id} {Path(hidden).name[1:]}"
            weakref.finalize(self, _leave, file, self._own)  # which a process that is killed leaves to others
            os.fchmod(file, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            Path(hidden).rename(self._own)  # not before: an unlocked one is taken for that of a dead process
        self.others()  # a device's process is killed in the end: who comes next clears away what it left

    def others(self) -> int:
        """How many other processes have said so, and live."""
        return sum(_is_held(each) for each in FOLDER.glob(f"{self._bus_id} *") if each != self._own)


@contextmanager
def _locked(path: Path, bus_id: str) -> Iterator[None]:
    file = _opened(path)
    try:
        if file is not None:
            with suppress(OSError):  # a file system without locks
                _lock(file, bus_id)
        yield
    finally:
        if file is not None:
            os.close(file)


def _leave(file: int, path: Path) -> None:
    with suppress(OSError):
        path.unlink()
    os.close(file)


def _lock(file: int, bus_id: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _tell_once(bus_id)
        fcntl.flock(file, fcntl.LOCK_EX)


@cache
def _tell_once(bus_id: str) -> None:
    text = f"another process times kernels on the GPU at {bus_id}: the two take turns"
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _opened(path: Path) -> int | None:
    with suppress(OSError):
        with suppress(FileNotFoundError):
            return os.open(path, _NOT_FOLLOWED)
        _make_folder()
        file = os.open(path, _NOT_FOLLOWED | os.O_CREAT)
        os.fchmod(file, 0o644)  # whatever the umask is
        return file
    return None


def _make_folder() -> None:
    """For all users, like /tmp itself; what is there already is left as it is, for it may be a trap of another user."""
    with suppress(FileExistsError):
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)


def _is_held(path: Path) -> bool:
    """Whether the process that locked a file lives; a file that it left goes."""
    try:
        file = os.open(path, _NOT_FOLLOWED)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    with suppress(OSError):
        path.unlink()
    return False
