"""Detection of changed records in an application's sources, without reading the records."""

from collections.abc import Hashable
from pathlib import Path

from tuner.errors import StoreError
from tuner.store import locations, read


class Sources:
    """The sources that an application reads, and their last known versions."""

    def __init__(self) -> None:
        self._looked: dict[str, tuple[Hashable, Hashable]] = {}
        self._seen = self._versions()

    def changed(self) -> bool:
        """Return whether a record or a proof was added, or a text file replaced, since the last call that returned
        True.
        """
        versions = self._versions()
        changed = versions != self._seen
        self._seen = versions
        return changed

    def _versions(self) -> dict[str, Hashable]:
        return {source: self._version(source) for source in locations.layers() if "://" not in source}

    def _version(self, source: str) -> Hashable:
        """Return the version of a source. A database is opened only if its files have changed, because searches write
        often.
        """
        path = Path(source).expanduser()
        files = _files(path)
        before = self._looked.get(source)
        if before is None or before[0] != files:
            self._looked[source] = files, files if read.is_text(path) else _rows(path, files)
        return self._looked[source][1]


def _files(path: Path) -> Hashable:
    """Return the inode, size and modification time of each file of a source."""
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
    else:
        files = [path, path.with_name(f"{path.name}-wal")]
    return tuple((str(file), _stat(file)) for file in files)


def _stat(file: Path) -> Hashable:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _rows(path: Path, otherwise: Hashable) -> Hashable:
    try:
        return (_stat(path) or (0,))[0], read.last_rows(path)  # type: ignore[index]  # another file has another inode
    except StoreError:
        return otherwise
