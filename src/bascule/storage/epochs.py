"""Leader epoch -> its first offset, kept in one small file (KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from bascule.errors import CorruptData, FencedEpoch
from bascule.host.api import Files
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "leader-epochs"
NO_EPOCH: Final = -2
"""No batch has this leader epoch."""
OFFSET_END: Final = (1 << 63) - 1
MAGIC: Final = b"BscEpoc1"
_HEADER: Final = Struct(">8sII")
_ENTRY: Final = Struct(">iq")


class Epoch(NamedTuple):
    """The leader of epoch `number` wrote the batches from offset `start` on."""

    number: int
    start: int


class LeaderEpochs:
    """The epochs of one log in order. Immutable: each change returns a new object."""

    __slots__ = ("entries",)

    def __init__(self, entries: tuple[Epoch, ...] = ()) -> None:
        self.entries = entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"LeaderEpochs({self.entries})"

    @property
    def latest(self) -> int:
        """The latest epoch, -1 if there is none."""
        return self.entries[-1].number if self.entries else -1

    def with_epoch(self, number: int, start: int) -> LeaderEpochs:
        """These epochs and epoch `number`, which starts at offset `start`.

        An epoch that started at the same offset wrote no batch and is dropped.
        """
        assert number > self.latest, f"epoch {number} starts after epoch {self.latest}"
        kept = tuple(entry for entry in self.entries if entry.start < start)
        return LeaderEpochs((*kept, Epoch(number, start)))

    def with_told(self, told: LeaderEpochs, number: int, after: int, start: int) -> LeaderEpochs:
        """These epochs and those up to epoch `number`, whose first batch that is left in the log
        has offset `start` and follows the one that ends at `after`.

        What compaction has removed between the two may have been of that epoch, or of others: where
        they began is `told` by a log that had these records. Without that they count as records of
        `number`: a record that nobody has committed must not count as one of the epoch before.
        """
        epochs = self
        for entry in told.entries:
            if epochs.latest < entry.number <= number and entry.start <= start:
                epochs = epochs.with_epoch(entry.number, max(entry.start, after))
        return epochs if epochs.latest == number else epochs.with_epoch(number, after)

    def after(self, offset: int) -> LeaderEpochs:
        """The epoch that wrote `offset`, and the later ones."""
        at = bisect_right(self.entries, offset, key=itemgetter(1)) - 1
        return self if at <= 0 else LeaderEpochs(self.entries[at:])

    def up_to(self, end: int) -> LeaderEpochs:
        """These epochs without those that start above offset `end`."""
        return self.before(end + 1)

    def before(self, end: int) -> LeaderEpochs:
        """These epochs without those that start at offset `end` or above."""
        kept = tuple(entry for entry in self.entries if entry.start < end)
        return self if len(kept) == len(self.entries) else LeaderEpochs(kept)

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 if it is unknown."""
        at = bisect_right(self.entries, offset, key=itemgetter(1)) - 1
        return self.entries[at].number if at >= 0 else -1

    def span(self, offset: int) -> tuple[int, int]:
        """The epoch that wrote `offset`, and the offset where the next one starts.

        The epoch is -1 if it is unknown. The end is OFFSET_END if no later epoch is known.
        """
        at = bisect_right(self.entries, offset, key=itemgetter(1))
        end = self.entries[at].start if at < len(self.entries) else OFFSET_END
        return (self.entries[at - 1].number if at else -1), end

    def end_of(self, number: int, *, end_offset: int) -> tuple[int, int]:
        """The largest epoch up to `number` and its end offset; (-1, -1) if there is none.

        `end_offset` is the end of the latest epoch. Source: KIP-101, OffsetsForLeaderEpoch.
        """
        at = bisect_right(self.entries, number, key=itemgetter(0)) - 1
        if at < 0:
            return -1, -1
        following = at + 1
        end = self.entries[following].start if following < len(self.entries) else end_offset
        return self.entries[at].number, min(end, end_offset)


NO_EPOCHS: Final = LeaderEpochs()


class EpochFile:
    """The leader epochs of one log, in memory and on the disk, and the fence for appends.

    An epoch is synced before its first batch is written. Recovery relies on that.
    """

    def __init__(self, files: Files, directory: str, epochs: LeaderEpochs) -> None:
        """`epochs` are the epochs on the disk."""
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._on_disk: LeaderEpochs | None = epochs
        """None after a failed write: the content of the file is then unknown."""
        self._fence = NO_EPOCH
        """The highest leader epoch for which the log was truncated."""
        self.epochs = epochs
        """Any thread may read it."""
        self.appending_epoch = NO_EPOCH
        """The leader epoch whose appends need no further check, or NO_EPOCH."""

    def start(self, number: int, offset: int) -> None:
        """Allow leader epoch `number` to append from `offset` on. Raises: FencedEpoch, OSError."""
        epochs = self.epochs
        latest = max(epochs.latest, self._fence)
        if number < latest:
            raise FencedEpoch(number, latest)
        self.save(epochs.with_epoch(number, offset) if number > epochs.latest else epochs)
        self.appending_epoch = number

    def save(self, epochs: LeaderEpochs) -> None:
        """Write and sync `epochs`, unless the file holds them. Raises: OSError."""
        self.appending_epoch = NO_EPOCH
        if epochs != self._on_disk:
            self._on_disk = None
            replace_file(self._files, self._path, encode_epochs(epochs))
            self._on_disk = epochs
        self.epochs = epochs

    def revert(self, epochs: LeaderEpochs) -> None:
        """Use `epochs` again: no batch of a later epoch was written.

        The file still holds the later epochs. The next `save` replaces it.
        """
        self.appending_epoch = NO_EPOCH
        self.epochs = epochs

    def fence(self, epoch: int) -> None:
        """Refuse appends of leader epochs below `epoch` from now on. Raises: FencedEpoch."""
        latest = max(self.epochs.latest, self._fence)
        if epoch < latest:
            raise FencedEpoch(epoch, latest)
        self._fence, self.appending_epoch = epoch, NO_EPOCH

    def reset(self) -> None:
        """Start without epochs, after the file was removed."""
        self.epochs = self._on_disk = LeaderEpochs()
        self.appending_epoch = NO_EPOCH


def read_epochs(files: Files, directory: str) -> LeaderEpochs | None:
    """The leader epochs of the log in `directory`, None if the file is missing or damaged.

    Its callers then read the epochs from the batch headers. Raises: OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        return decode_epochs(files.read_bytes(path), path=path)
    except (FileNotFoundError, CorruptData):
        return None


def encode_epochs(epochs: LeaderEpochs) -> bytes:
    body = b"".join(_ENTRY.pack(*entry) for entry in epochs.entries)
    return _HEADER.pack(MAGIC, crc32c(body), len(epochs.entries)) + body


def decode_epochs(data: bytes, *, path: str) -> LeaderEpochs:
    """Read a whole file.

    Raises: CorruptData.
    """
    if len(data) < _HEADER.size:
        raise CorruptData(
            path, len(data), f"a header of {_HEADER.size} bytes", f"{len(data)} bytes"
        )
    magic, crc, count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path, 0, MAGIC.decode(), repr(magic))
    body = memoryview(data)[_HEADER.size :]
    if len(body) != count * _ENTRY.size:
        raise CorruptData(path, 12, f"{len(body) / _ENTRY.size:g} entries", str(count))
    if crc32c(body) != crc:
        raise CorruptData(path, 8, f"CRC {crc32c(body):#010x}", f"{crc:#010x}")
    entries = tuple(Epoch._make(fields) for fields in _ENTRY.iter_unpack(body))
    for row in range(1, len(entries)):
        before, entry = entries[row - 1], entries[row]
        if entry.number <= before.number or entry.start <= before.start:
            at = _HEADER.size + row * _ENTRY.size
            raise CorruptData(path, at, f"an epoch after {before}", str(entry))
    return LeaderEpochs(entries)
