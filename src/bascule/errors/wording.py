"""Numbers and settings as errors show them."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """`1 partition`, `2,000 partitions`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def setting_text(value: object) -> str:
    """The value of a setting as commands and configuration files write it: `'orders.>'`, `true`,
    `delete,compact`; `none` for no value."""
    if value is None or value == () or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return repr(str(value)) if isinstance(value, str) else str(value)
