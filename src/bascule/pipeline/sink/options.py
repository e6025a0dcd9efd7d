"""What a user may say with `option(...)` to the sink, checked once, as one frozen value. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal, cast

from bascule.client.columnar.publisher import BATCH_TIMEOUT_S, BATCH_WINDOW
from bascule.errors import ConfigError
from bascule.pipeline.clients import NO_LOGIN, NatsLogin
from bascule.wire.subjects import check_subject

Dedupe = Literal["require", "warn", "off"]
DEDUPE: Final = ("require", "warn", "off")

_LOGIN: Final = {
    "nats": "nats",
    "user": "user",
    "password": "password",
    "token": "token",
    "nkey": "nkey",
    "nkeySeed": "nkey_seed",
    "creds": "creds",
    "tlsCa": "tls_ca",
    "tlsCert": "tls_cert",
    "tlsKey": "tls_key",
}
"""Option -> field of `NatsLogin`."""
_NAMES: Final = (
    "server",
    "stream",
    "subject",
    "includeHeaders",
    "window",
    "ackTimeout",
    "dedupe",
    "messageIdPrefix",
    *_LOGIN,
    "tlsFirst",
)
_BY_LOWER_NAME: Final = {name.lower(): name for name in _NAMES}
_FROM_SPARK: Final = frozenset(
    {"path", "checkpointlocation", "queryname", "outputmode", "__spark_schema__"}
)
"""Keys that Spark adds, or that are meant for it; `save("flights")` arrives as `path`."""
_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]+)")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write or one streaming query."""

    server: str = ""
    stream: str = ""
    """Only its acks count; empty: that of whichever stream answers first."""
    subject: str = ""
    """The subject of every row; empty: column `subject` has them."""
    headers: bool = True
    """Whether a column `headers` is published."""
    window: int = BATCH_WINDOW
    """Rows of a task without ack at a time."""
    ack_timeout_s: float = BATCH_TIMEOUT_S
    dedupe: Dedupe = "warn"
    id_prefix: str = ""
    """What the message ids of a batch write begin with; empty: something new each time."""
    login: NatsLogin = NO_LOGIN

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read Spark's option map; names are matched without regard to case.

        Raises: ConfigError for an unknown name or a value that cannot be read, InvalidName.
        """
        given = {name.lower(): str(value) for name, value in options.items()}
        for name in given:
            if name not in _BY_LOWER_NAME and name not in _FROM_SPARK:
                raise ConfigError(_unknown_text(name))
        subject = given.get("subject", "")
        if "subject" in given:
            check_subject(subject, wildcards=False)
        dedupe = cast(Dedupe, _word("dedupe", given, DEDUPE, default="warn"))
        stream = given.get("stream") or given.get("path") or ""
        if dedupe == "require" and not stream:
            raise ConfigError(
                'option "dedupe" is "require", which needs option "stream": whose window is it?'
            )
        login = {field: given[name.lower()] for name, field in _LOGIN.items() if
                 name.lower() in given}  # fmt: skip
        return cls(
            server=given.get("server", ""),
            stream=stream,
            subject=subject,
            headers=_flag("includeHeaders", given, default=True),
            window=_count("window", given, default=BATCH_WINDOW),
            ack_timeout_s=_seconds("ackTimeout", given, default=BATCH_TIMEOUT_S),
            dedupe=dedupe,
            id_prefix=_line("messageIdPrefix", given),
            login=NatsLogin(**login, tls_first=_flag("tlsFirst", given, default=False)),
        )

    def for_stream(self) -> SinkOptions:
        """Raises: ConfigError where an option only means something to a batch write."""
        if self.id_prefix:
            raise ConfigError(
                'option "messageIdPrefix" is for write, not for writeStream: the message ids of a '
                "query come from its checkpoint"
            )
        return self


def _unknown_text(name: str) -> str:
    near = get_close_matches(name, _BY_LOWER_NAME, n=1, cutoff=0.5)
    hint = f"did you mean {_BY_LOWER_NAME[near[0]]!r}?" if near else f"known: {', '.join(_NAMES)}"
    return f"option {name!r} is unknown to the sink; {hint}"


def _count(name: str, given: Mapping[str, str], *, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"option {name!r} is {text!r}: expected a whole number of at least 1")
    return int(text)


def _seconds(name: str, given: Mapping[str, str], *, default: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    matched = _DURATION.fullmatch(text.strip().lower())
    if matched is None or matched[2] not in _MS or not int(matched[1]):
        raise ConfigError(f"option {name!r} is {text!r}: expected a time such as 500ms, 30s or 15m")
    return int(matched[1]) * _MS[matched[2]] / 1_000


def _flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    return _word(name, given, ("true", "false"), default=str(default).lower()) == "true"


def _word(name: str, given: Mapping[str, str], words: tuple[str, ...], *, default: str) -> str:
    text = given.get(name.lower(), default)
    word = text.strip().lower()
    if word not in words:
        raise ConfigError(f"option {name!r} is {text!r}: expected {', '.join(words)}")
    return word


def _line(name: str, given: Mapping[str, str]) -> str:
    text = given.get(name.lower(), "")
    if not text.isprintable() or text != text.strip():
        raise ConfigError(
            f"option {name!r} is {text!r}: expected printable text without blanks at its ends"
        )
    return text
