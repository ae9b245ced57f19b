"""The processes that hold locks on an SQLite file, if the operating system reports them (Linux)."""

from collections.abc import Iterator
from pathlib import Path

_LOCKS = Path("/proc/locks")  # man 5 proc_locks: number, kind, mode, access, pid, major:minor:inode, first, last


def of(path: Path) -> list[str]:
    """Return the processes that hold a write lock on the file, with pid and command; empty if unknown."""
    files = {_inode(path.with_name(f"{path.name}{suffix}")) for suffix in ("", "-shm")}
    try:
        locks = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return []
    writers = {int(lock[-4]) for lock in locks if "WRITE" in lock and lock[-3].rpartition(":")[2] in files}
    return sorted(_described(writer) for writer in writers if writer > 0)


def _inode(path: Path) -> str:
    try:
        return str(path.stat().st_ino)
    except OSError:
        return "none"


def _described(pid: int) -> str:
    return f"process {pid} ({' '.join(_words(pid)) or 'of another user'})"


def _words(pid: int) -> Iterator[str]:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return
    yield from (word for word in command.decode(errors="replace").replace("\n", " ").split("\0")[:6] if word)
