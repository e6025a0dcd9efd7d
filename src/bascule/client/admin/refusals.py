"""The exceptions of a node's refusals."""

from __future__ import annotations

from typing import Any

from bascule.errors import (
    BasculeError,
    Broken,
    CannotAlter,
    CannotCancel,
    CannotDrain,
    CannotLead,
    CannotRemoveNode,
    ConfigError,
    GroupHasMembers,
    Indeterminate,
    InternalStream,
    InvalidKey,
    InvalidName,
    InvalidPattern,
    NeedsClusterVersion,
    NotANumber,
    NotATable,
    NotEnoughNodes,
    OffsetOutOfRange,
    RequestExpired,
    RequestFailed,
    StreamConflict,
    UnknownGroup,
    UnknownKey,
    UnknownNode,
    UnknownPartition,
    UnknownStream,
    WrongVersion,
)


def error_of(
    response: Any, *, what: str, name: str, node: int = 0, group: str = ""
) -> BasculeError:
    """Convert the body of a refusal to an exception. `name` is the stream of the request, `node`
    and `group` its node and group."""
    detail = response.get("error") if isinstance(response, dict) else None
    if not isinstance(detail, dict):
        return RequestFailed(what, "no_error_body", str(response)[:200])
    code, message = str(detail.get("code")), str(detail.get("message"))
    known = _of_code(code, detail, name) or _of_node(code, node) or _of_group(code, group)
    return _worded(known, message) if known else RequestFailed(what, code, message)


def _of_code(code: str, detail: dict[str, Any], name: str) -> BasculeError | None:
    """The exception of an error code, with the fields of the response. The caller sets its text."""
    match code, detail.get("held"):
        case "unknown_stream", _:
            return UnknownStream(name)
        case "unknown_partition", [int(asked), int(count)]:
            return UnknownPartition(name, asked, count)
        case "offset_out_of_range", [int(asked), int(start), int(end)]:
            return OffsetOutOfRange(asked, start, end)
        case "stream_conflict", _:
            pairs = detail.get("differences") or {}
            return StreamConflict(name, {key: (pair[0], pair[1]) for key, pair in pairs.items()})
        case "cannot_lead", _:
            return CannotLead(name, -1, -1, "")
        case "cannot_cancel", _:
            return CannotCancel(name, None, "")
        case "cannot_alter", _:
            field = str(detail.get("field"))
            present = detail.get("present")
            return CannotAlter(name, field, present=present, asked=None, instead="")
        case "internal_stream", _:
            return InternalStream(name, "changed")
        case "invalid_name", _:
            return InvalidName("name", name, "refused")
        case "unknown_key", _:
            return UnknownKey(name, b"")
        case "invalid_key", _:
            return InvalidKey(b"", "refused")
        case "invalid_pattern", _:
            return InvalidPattern(b"", "refused")
        case "not_a_table", _:
            return NotATable(name, "")
        case "wrong_version", _:
            expected, found = detail.get("expected"), detail.get("found")
            return WrongVersion(name, b"", expected=expected, found=found)
        case "not_a_number", _:
            return NotANumber(name, b"", "")
        case "invalid_config", _:
            return ConfigError("", field=detail.get("field"))
        case "request_expired", _:
            return RequestExpired(0, 0)
        case "indeterminate", _:
            return Indeterminate()
        case "unavailable" | "closing", _:
            return Broken("")
    return None


def _of_node(code: str, node: int) -> BasculeError | None:
    """As `_of_code`, of errors about a node."""
    kinds = {
        "unknown_node": UnknownNode(node),
        "cannot_remove_node": CannotRemoveNode(node, ""),
        "cannot_drain": CannotDrain(node, ""),
        "not_enough_nodes": NotEnoughNodes(0, []),
        "needs_cluster_version": NeedsClusterVersion("", 0, 0, {}, ""),
    }
    return kinds.get(code)


def _of_group(code: str, group: str) -> BasculeError | None:
    """As `_of_code`, of errors about a group."""
    kinds = {"unknown_group": UnknownGroup(group), "group_has_members": GroupHasMembers(group)}
    return kinds.get(code)


def _worded(error: BasculeError, message: str) -> BasculeError:
    """Set the text of `error` to the node's text."""
    error.args = (message,)
    return error
