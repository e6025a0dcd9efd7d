"""Checks of NATS subjects and queue groups."""

from __future__ import annotations

from typing import Final

from bascule.errors import InvalidName

SUBJECT_BYTES_MAX: Final = 512
"""Of the subject of a stream."""
MESSAGE_SUBJECT_BYTES_MAX: Final = 3_500
"""NATS limits the control line to 4096 bytes, for subject, reply subject and sizes together."""
TOKENS_MAX: Final = 64
"""Of the subject of a stream."""


def check_subject(subject: str, *, wildcards: bool) -> None:
    """Check the subject of a stream, or without `wildcards` that of a message.

    Raises: InvalidName naming the violated rule.
    """
    size = len(subject.encode("utf-8", "surrogatepass"))
    if not subject:
        raise InvalidName("subject", subject, "it is empty")
    bytes_max = SUBJECT_BYTES_MAX if wildcards else MESSAGE_SUBJECT_BYTES_MAX
    if size > bytes_max:
        raise InvalidName("subject", subject, f"{size} bytes long, at most {bytes_max}")
    for position, character in enumerate(subject):
        if character.isspace() or not character.isprintable():
            raise InvalidName(
                "subject", subject, f"{character!r} at position {position} is not allowed"
            )
    tokens = subject.split(".")
    if wildcards and len(tokens) > TOKENS_MAX:
        raise InvalidName("subject", subject, f"{len(tokens)} tokens, at most {TOKENS_MAX}")
    for number, part in enumerate(tokens):
        _check_part(subject, part, wildcards=wildcards, last=number == len(tokens) - 1)


def _check_part(subject: str, part: str, *, wildcards: bool, last: bool) -> None:
    if not part:
        raise InvalidName("subject", subject, "it has an empty token (two dots, or one at an end)")
    if "*" not in part and ">" not in part:
        return
    if not wildcards:
        raise InvalidName("subject", subject, "wildcards cannot be published to")
    if len(part) > 1:
        raise InvalidName("subject", subject, f"a wildcard is a token of its own, not {part!r}")
    if part == ">" and not last:
        raise InvalidName("subject", subject, "'>' may only be the last token")


def subjects_overlap(one: str, other: str) -> bool:
    """Whether a message can have a subject that both match; both may have wildcards."""
    ours, theirs = one.split("."), other.split(".")
    for mine, its in zip(ours, theirs, strict=False):
        if ">" in (mine, its):
            return True
        if mine != its and "*" not in (mine, its):
            return False
    # `a.>` does not match `a`: it needs one more token.
    return len(ours) == len(theirs)


def check_queue_group(group: str) -> None:
    """Check the name of a NATS queue group. Raises: InvalidName."""
    if not group or len(group.encode("utf-8", "surrogatepass")) > SUBJECT_BYTES_MAX:
        raise InvalidName("queue group", group, f"it must have 1 to {SUBJECT_BYTES_MAX} bytes")
    if any(c.isspace() or not c.isprintable() for c in group):
        raise InvalidName("queue group", group, "it must not hold blanks or control characters")
