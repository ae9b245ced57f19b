"""An external merge sort of rows: sorted runs are written to a temporary file and merged when they are read."""

import heapq
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from tuner.base.self_closing import Closing
from tuner.errors import StoreError
from tuner.results.strict_json import pack, unpack_rows

Row = tuple[Any, ...]
_RUN = 8192  # rows that are sorted in memory
_CHUNK = 256  # rows of each run that are in memory while runs are merged


class SortedRows(Closing):
    """Rows of plain values in the order of `key`. All rows are added before the first iteration."""

    def __init__(self, key: Callable[[Row], Any]) -> None:
        self._key = key
        self._file: IO[bytes] | None = None  # created for the first run
        self._runs: list[list[tuple[int, int]]] = []  # offset and length of each chunk of a run
        self._last: list[Row] = []  # the run that is not full

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        for row in rows:
            self._last.append(row)
            if len(self._last) == _RUN:
                self._write_run()

    def __iter__(self) -> Iterator[Row]:
        self._last.sort(key=self._key)
        if self._file is None:
            return iter(self._last)
        runs = [self._rows_of(self._file, run) for run in self._runs]
        return heapq.merge(*runs, self._last, key=self._key)

    def _write_run(self) -> None:
        rows, self._last = sorted(self._last, key=self._key), []
        chunks = [pack(rows[first : first + _CHUNK]) for first in range(0, _RUN, _CHUNK)]
        try:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
            self._runs.append([(self._file.tell(), self._file.write(chunk)) for chunk in chunks])
        except OSError as error:
            raise StoreError(f"cannot write a temporary file of rows: {error.strerror}: set TMPDIR") from error

    @staticmethod
    def _rows_of(file: IO[bytes], run: list[tuple[int, int]]) -> Iterator[Row]:
        for offset, length in run:
            file.seek(offset)
            yield from unpack_rows(file.read(length))
