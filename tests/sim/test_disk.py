"""The crashable disk under a writer beside a sync, as a node's log writer and sync threads are."""

from __future__ import annotations

from bascule.sim.disk import PAGE_BYTES, Inode


class WrittenMeanwhile(bytearray):
    """Bytes of a file to which another thread appends a page whenever one is read."""

    inode: Inode

    def __getitem__(self, part):  # type: ignore[no-untyped-def]
        found = super().__getitem__(part)
        end = len(self)
        if end < 8 * PAGE_BYTES:
            self.extend(b"x" * PAGE_BYTES)
            self.inode.touch(end, end + PAGE_BYTES)
        return found


def test_a_sync_beside_an_append_keeps_what_was_there_before() -> None:
    data = WrittenMeanwhile(b"x" * 3 * PAGE_BYTES)
    data.inode = inode = Inode(data=data)
    inode.touch(0, len(data))
    inode.write_back()
    assert inode.disk[: 3 * PAGE_BYTES] == b"x" * 3 * PAGE_BYTES
    assert inode.dirty == {3, 4, 5}, "what came meanwhile is not synced"
    inode.write_back()
    inode.write_back()
    assert inode.disk == data
    assert not inode.dirty
