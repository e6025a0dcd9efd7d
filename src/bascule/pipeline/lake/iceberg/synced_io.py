"""File IO for Iceberg tables on this machine that syncs every file when it is closed.

SQLite syncs the catalog's pointer to the newest metadata file. Without this module a power failure
could keep the pointer and lose the file.
"""

from __future__ import annotations

from types import TracebackType

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from bascule.pipeline.lake import storage


class SyncedStream:
    """An output stream that syncs its file when it is closed, and the directories that may have
    been made for it."""

    def __init__(self, stream: OutputStream, location: str, warehouse: str) -> None:
        self._stream = stream
        self._location = location
        self._warehouse = warehouse
        self._is_open = True

    def write(self, b: bytes) -> int:
        return self._stream.write(b)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        """Raises: OSError."""
        if self._is_open:
            self._is_open = False
            self._stream.close()
            storage.sync_files([self._location], root=self._warehouse)

    def __enter__(self) -> SyncedStream:
        return self

    def __exit__(
        self,
        exctype: type[BaseException] | None,
        excinst: BaseException | None,
        exctb: TracebackType | None,
    ) -> None:
        self.close()


class SyncedFile(PyArrowFile):
    """A file with a synced output stream."""

    warehouse = ""
    """The directory, or URI, up to which directories are synced."""

    def create(self, overwrite: bool = False) -> OutputStream:
        return SyncedStream(super().create(overwrite), self.location, self.warehouse)


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's Arrow file IO with synced writes on this machine."""

    def new_output(self, location: str) -> PyArrowFile:
        if not storage.local_path(location):
            return super().new_output(location)
        scheme, netloc, path = self.parse_location(location, self.properties)
        file = SyncedFile(location=location, path=path, fs=self.fs_by_scheme(scheme, netloc))
        file.warehouse = self.properties.get("warehouse", "")
        return file
