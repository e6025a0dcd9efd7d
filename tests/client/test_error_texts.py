"""Values in the texts of errors, as commands and configuration files write them."""

from __future__ import annotations

from bascule.errors import CannotAlter, NotEnoughNodes, StreamConflict, UnknownPartition
from bascule.model import Cleanup


def test_settings_are_no_python() -> None:
    differences: dict[str, tuple[object, object]] = {
        "cleanup": ((Cleanup.COMPACT,), (Cleanup.DELETE, Cleanup.COMPACT)),
        "table": (True, False),
        "group": (None, "workers"),
        "record_headers": ((), ("subject",)),
        "partitions": (1, 4),
    }
    assert str(StreamConflict("s", differences)) == (
        "stream 's' exists with another configuration: "
        "cleanup is compact, asked for delete,compact; table is true, asked for false; "
        "group is none, asked for 'workers'; record_headers is none, asked for subject; "
        "partitions is 1, asked for 4"
    )
    error = CannotAlter("s", "cleanup", present=(Cleanup.COMPACT,), asked=("delete",), instead="x")
    assert str(error) == "cleanup of stream 's' is compact and cannot become delete: x"


def test_one_is_no_plural() -> None:
    assert "has 1 partition, asked for number 1" in str(UnknownPartition("s", 1, 1))
    assert "and 1 node is alive and takes replicas" in str(NotEnoughNodes(3, [1]))
