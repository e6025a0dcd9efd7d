"""The metadata image of a single node in one file; see `metadata.codec` for its format."""

from __future__ import annotations

from typing import Final

from bascule.host.api import Files
from bascule.metadata import codec
from bascule.metadata.image import Image
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "metadata.json"


class ImageStore:
    """Reads and replaces the file. Blocks on the disk."""

    def __init__(self, files: Files, data_directory: str) -> None:
        self._files = files
        self._path = f"{data_directory}/{FILE_NAME}"

    def load(self) -> Image:
        """The image of the last `save`; an empty one at the first start.

        Raises: CorruptData, UnsupportedFormat, OSError.
        """
        if not self._files.exists(self._path):
            return Image()
        return codec.decode_image(self._files.read_bytes(self._path), self._path)

    def save(self, image: Image) -> None:
        """Replace the file; it is on the disk on return. Raises: OSError."""
        replace_file(self._files, self._path, codec.encode_image(image))
