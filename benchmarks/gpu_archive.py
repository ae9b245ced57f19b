"""Keep a run's archive in a separate process, which packs it during the run and once more after the run has ended.

    python benchmarks/gpu_archive.py FOLDER ARCHIVE       packs at each line of input, and at the end of input

When a run is killed, its input pipe closes, so everything written until then is archived a moment later.
"""

import os
import select
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

_EVERY_S = 5.0  # minimum interval, except at the end


class Keeper:
    """The caller's side. Without an archive it does nothing."""

    def __init__(self, folder: Path, archive: Path | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if archive is None:
            return
        archive.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, str(folder.resolve()), str(archive.resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # outlives its caller

    def renew(self) -> None:
        """Request a new archive without waiting for it."""
        if self._process and self._process.stdin:
            with suppress(OSError):
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def close(self, patience_s: float | None = None) -> None:
        """Wait until everything is packed or the patience is over; the process continues to pack."""
        if self._process and self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder into one file, which is replaced atomically."""
    partial = archive.with_name(f"{archive.name}.partial")
    excluded = {archive, partial}  # they may be inside the folder
    with tarfile.open(partial, "w:gz", compresslevel=3) as packed, TemporaryDirectory() as copies:
        for path in sorted(folder.rglob("*")):
            if path in excluded or path.name.endswith(("-wal", "-shm", "-journal")):
                continue
            with suppress(FileNotFoundError):  # temporary files may disappear
                content = _copied(path, Path(copies)) if path.suffix == ".db" else path
                packed.add(content, folder.name / path.relative_to(folder), recursive=False)
    partial.replace(archive)


def _copied(database: Path, folder: Path) -> Path:
    """Return a consistent copy of the database."""
    copy = folder / database.name
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def main() -> None:
    folder, archive = map(Path, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles Ctrl-C and closes the input
    hangup = select.poll()
    hangup.register(0, 0)  # works for any descriptor
    while os.read(0, 1 << 16):
        pack(folder, archive)
        hangup.poll(1000 * _EVERY_S)
    pack(folder, archive)


if __name__ == "__main__":
    main()
