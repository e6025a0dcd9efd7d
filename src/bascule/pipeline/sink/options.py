"""What a user may say with `option(...)` to the sink, checked once, as one frozen value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from bascule.client.columnar.publisher import BATCH_TIMEOUT_S, BATCH_WINDOW
from bascule.errors import ConfigError
from bascule.pipeline.clients import NO_LOGIN, NatsLogin
from bascule.pipeline.option_parsing import count_of, flag_of, ms_of, unknown_option_text, word_of
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
                raise ConfigError(unknown_option_text(name, _BY_LOWER_NAME, of=" to the sink"))
        subject = given.get("subject", "")
        if "subject" in given:
            check_subject(subject, wildcards=False)
        dedupe = cast(Dedupe, word_of("dedupe", given, DEDUPE, default="warn"))
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
            headers=flag_of("includeHeaders", given, default=True),
            window=count_of("window", given, BATCH_WINDOW),
            ack_timeout_s=ms_of("ackTimeout", given, round(BATCH_TIMEOUT_S * 1_000)) / 1_000,
            dedupe=dedupe,
            id_prefix=_line("messageIdPrefix", given),
            login=NatsLogin(**login, tls_first=flag_of("tlsFirst", given, default=False)),
        )

    def for_stream(self) -> SinkOptions:
        """Raises: ConfigError where an option only means something to a batch write."""
        if self.id_prefix:
            raise ConfigError(
                'option "messageIdPrefix" is for write, not for writeStream: the message ids of a '
                "query come from its checkpoint"
            )
        return self


def _line(name: str, given: Mapping[str, str]) -> str:
    text = given.get(name.lower(), "")
    if not text.isprintable() or text != text.strip():
        raise ConfigError(
            f"option {name!r} is {text!r}: expected printable text without blanks at its ends"
        )
    return text
