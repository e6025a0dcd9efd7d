"""What a decoder gives and what it is asked; what an encoder is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """DecodeOne column of record values, decoded; as many rows as values, in their order."""

    values: pa.Array
    """A struct array of exactly the declared type. A row is null where its value is null or bad;
    of format raw it is the binary array that went in."""
    bad: pa.Array
    """int64, ascending: the rows whose value is there but does not parse."""
    reasons: list[str]
    """DecodeOne short text for each of `bad`: what was expected, what found, where."""

    def bad_mask(self) -> pa.Array:
        """For each row whether it is among `bad`: bool, as long as `values`."""
        import numpy as np
        import pyarrow as pa

        mask = np.zeros(len(self.values), dtype=bool)
        mask[self.bad.to_numpy()] = True
        return pa.array(mask)


class ValueDecoder(Protocol):
    """Bytes to typed rows. Keeps no state between calls; not shared between threads."""

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decode a binary array. Never raises for what the bytes hold."""


class ValueEncoder(Protocol):
    """Typed rows to bytes."""

    def encode(self, rows: pa.Array) -> pa.Array:
        """A struct array of the declared type as a binary array; a null row gives a null value.

        Raises: ValueError for a value that the format cannot express, such as NaN in JSON.
        """
