"""The metadata image of a single node in one file; see `metadata.codec` for its format."""

from __future__ import annotations

from typing import Final

from bascule.controller import held_partitions
from bascule.controller.directories import STREAMS_DIRECTORY
from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.metadata import codec
from bascule.metadata.image import Image
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "metadata.json"


class ImageStore:
    """Reads and replaces the file. Blocks on the disk."""

    def __init__(self, files: Files, data_directory: str) -> None:
        self._files = files
        self._data = data_directory
        self._path = f"{data_directory}/{FILE_NAME}"

    def load(self) -> Image:
        """The image of the last `save`; an empty one before the first.

        Raises: CorruptData where the file is damaged, or missing although there are partitions;
        UnsupportedFormat, OSError.
        """
        if not self._files.exists(self._path):
            if self._has_partitions():
                raise CorruptData(
                    self._path, 0, "the metadata of the streams in this directory", "no such file"
                )
            return Image()
        return codec.decode_image(self._files.read_bytes(self._path), self._path)

    def _has_partitions(self) -> bool:
        streams = f"{self._data}/{STREAMS_DIRECTORY}"
        if self._files.exists(f"{self._data}/{held_partitions.FILE_NAME}"):
            return True
        return self._files.exists(streams) and bool(self._files.list_dir(streams))

    def save(self, image: Image) -> None:
        """Replace the file; it is on the disk on return. Raises: OSError."""
        replace_file(self._files, self._path, codec.encode_image(image))
