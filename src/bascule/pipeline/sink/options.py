"""The options of the sink, parsed once into a frozen value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from bascule.client.columnar.publisher import BATCH_WINDOW
from bascule.errors import ConfigError
from bascule.pipeline.clients import NO_LOGIN, NatsLogin
from bascule.pipeline.option_parsing import count_of, flag_of, ms_of, unknown_option_text, word_of
from bascule.pipeline.retries import RETRY_TIMEOUT_MS
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
    "retryTimeout",
    "dedupe",
    "messageIdPrefix",
    *_LOGIN,
    "tlsFirst",
)
_BY_LOWER_NAME: Final = {name.lower(): name for name in _NAMES}
_FROM_SPARK: Final = frozenset(
    {"path", "checkpointlocation", "queryname", "outputmode", "__spark_schema__"}
)
"""Keys that Spark adds or uses itself. `save("flights")` arrives as `path`."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write or one streaming query."""

    server: str = ""
    stream: str = ""
    """Only acks of this stream count. Empty: the first stream that replies."""
    subject: str = ""
    """Subject of every row. Empty: column `subject`."""
    headers: bool = True
    """Whether a column `headers` is published."""
    window: int = BATCH_WINDOW
    """Greatest number of rows of a task without ack."""
    ack_timeout_s: float = RETRY_TIMEOUT_MS / 1_000
    """How long no row may be acked. Default: `retry_timeout_ms`."""
    dedupe: Dedupe = "warn"
    id_prefix: str = ""
    """Prefix of the message ids of a batch write. Empty: a random one."""
    login: NatsLogin = NO_LOGIN
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    """How long the node or the NATS server may be away."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse Spark's options. Case of names is ignored.

        Raises: ConfigError for an unknown name or an invalid value, InvalidName.
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
            raise ConfigError('option "dedupe" is "require", which needs option "stream"')
        retry_timeout_ms = ms_of("retryTimeout", given, RETRY_TIMEOUT_MS)
        login = {field: given[name.lower()] for name, field in _LOGIN.items() if
                 name.lower() in given}  # fmt: skip
        return cls(
            server=given.get("server", ""),
            stream=stream,
            subject=subject,
            headers=flag_of("includeHeaders", given, default=True),
            window=count_of("window", given, BATCH_WINDOW),
            ack_timeout_s=ms_of("ackTimeout", given, retry_timeout_ms) / 1_000,
            retry_timeout_ms=retry_timeout_ms,
            dedupe=dedupe,
            id_prefix=_line("messageIdPrefix", given),
            login=NatsLogin(**login, tls_first=flag_of("tlsFirst", given, default=False)),
        )

    def for_stream(self) -> SinkOptions:
        """Raises: ConfigError for an option that only a batch write has."""
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
