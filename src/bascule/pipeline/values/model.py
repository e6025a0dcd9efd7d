"""Interfaces of decoders and encoders, and the result of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """One decoded column of record values, with one row per value in the same order."""

    values: pa.Array
    """A struct array of exactly the declared type. A row is null if its value is null or malformed.
    For format raw it is the input array."""
    bad: pa.Array
    """int64, ascending: the rows with malformed values."""
    reasons: list[str]
    """One short text for each of `bad`: expected, found, position."""

    def bad_mask(self) -> pa.Array:
        """For each row whether it is in `bad`. Boolean, as long as `values`."""
        import numpy as np
        import pyarrow as pa

        mask = np.zeros(len(self.values), dtype=bool)
        mask[self.bad.to_numpy()] = True
        return pa.array(mask)


class ValueDecoder(Protocol):
    """Decodes bytes to typed rows. Keeps no state between calls. Not thread-safe."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decode a binary array. Does not raise for any bytes."""


class ValueEncoder(Protocol):
    """Encodes typed rows to bytes."""

    def encode(self, rows: pa.Array) -> pa.Array:
        """Encode a struct array of the declared type to a binary array. A null row becomes a null
        value.

        Raises: ValueError for a value that the format cannot express, such as NaN in JSON.
        """
