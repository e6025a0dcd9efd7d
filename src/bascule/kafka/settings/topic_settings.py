"""The settings of a stream under Kafka's names, and back.

A setting that Kafka does not have is `bascule.` and its name. The stream keeps every value, and not
who has chosen it: a value that differs from the default of this node counts as the topic's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from bascule.config import KEYS, Config, StreamDefaults
from bascule.config.validation import check_value, parse_value
from bascule.errors import ConfigError
from bascule.kafka.settings.kinds import LONG_MAX, ConfigSource, ConfigType, DescribedSetting
from bascule.model import Compression, StreamDefinition, min_isr_in_force
from bascule.wire.messages.describe_configs import STREAM_ID, SUBJECT

OWN: Final = "bascule."
"""Begins the names of settings that Kafka does not have."""
TIMESTAMP_TYPE: Final = "message.timestamp.type"
LOG_APPEND_TIME: Final = "LogAppendTime"
GROUP: Final = "bascule.group"
_FIXED: Final = frozenset({SUBJECT, STREAM_ID, GROUP, "bascule.partition_by", "bascule.key_from"})
"""Settings that cannot change once there is the stream."""


def _number(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < low:
            raise ValueError(f"at least {low}")
        return number

    return parse


def _limit(text: str) -> int:
    """Kafka's -1 is no limit, which is 0 here; Kafka's 0 would remove everything at once."""
    number = int(text)
    if number != -1 and number < 1:
        raise ValueError("at least 1, or -1 for no limit")
    return max(number, 0)


def _never(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"at least 1, or {LONG_MAX} for never")
    return 0 if number == LONG_MAX else number


def _percent(text: str) -> int:
    share = float(text) * 100
    if not 0 <= share <= 100 or abs(share - round(share)) > 1e-6:
        raise ValueError("between 0 and 1, with at most two decimals")
    return round(share)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


_CODECS: Final = {
    "producer": Compression.NONE.value,  # what publishers send, which is not compressed
    "uncompressed": Compression.NONE.value,
    **{codec.value: codec.value for codec in Compression},
}


def _codec(text: str) -> str:
    if text not in _CODECS:
        raise ValueError(f"one of {', '.join(_CODECS)}")
    return _CODECS[text]


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a stream that Kafka has, too."""

    name: str
    field: str
    """Of `StreamConfig`."""
    broker_name: str
    """Kafka's name of the default for new topics."""
    type: ConfigType
    show: Callable[[Any], str]
    parse: Callable[[str], Any]
    """Text to the plain value of the field. Raises: ValueError, whose text is what is expected."""

    @property
    def about(self) -> str:
        return KEYS[f"streams.{self.field}"].about


TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {
    row[0]: TopicSetting(*row)
    for row in (
        ("cleanup.policy", "cleanup", "log.cleanup.policy",
         ConfigType.LIST, ",".join, _words),
        ("compression.type", "compression", "compression.type", ConfigType.STRING,
         lambda codec: "uncompressed" if codec == Compression.NONE.value else str(codec), _codec),
        ("delete.retention.ms", "tombstone_retention_ms", "log.cleaner.delete.retention.ms",
         ConfigType.LONG, str, _number(0)),
        ("max.compaction.lag.ms", "max_compaction_lag_ms", "log.cleaner.max.compaction.lag.ms",
         ConfigType.LONG, lambda ms: str(ms or LONG_MAX), _never),
        ("max.message.bytes", "message_bytes_max", "message.max.bytes",
         ConfigType.INT, str, _number(1)),
        ("min.cleanable.dirty.ratio", "dirty_percent_min", "log.cleaner.min.cleanable.ratio",
         ConfigType.DOUBLE, lambda percent: str(percent / 100), _percent),
        ("min.compaction.lag.ms", "min_compaction_lag_ms", "log.cleaner.min.compaction.lag.ms",
         ConfigType.LONG, str, _number(0)),
        ("min.insync.replicas", "min_isr", "min.insync.replicas",
         ConfigType.INT, str, _number(1)),
        ("retention.bytes", "retention_bytes_max", "log.retention.bytes",
         ConfigType.LONG, lambda limit: str(limit or -1), _limit),
        ("retention.ms", "retention_ms_max", "log.retention.ms",
         ConfigType.LONG, lambda limit: str(limit or -1), _limit),
        ("segment.bytes", "segment_bytes_max", "log.segment.bytes",
         ConfigType.INT, str, _number(1)),
        ("segment.ms", "segment_age_ms_max", "log.roll.ms",
         ConfigType.LONG, str, _number(1)),
        ("unclean.leader.election.enable", "unclean_election", "unclean.leader.election.enable",
         ConfigType.BOOLEAN, lambda flag: str(flag).lower(), _flag),
    )
}  # fmt: skip
"""By Kafka's name."""

_COUNTS: Final = ("partitions", "replicas")
"""Not settings of a topic in Kafka."""

OWN_SETTINGS: Final[Mapping[str, str]] = {
    f"{OWN}{field}": field
    for field in asdict(StreamDefaults())
    if field not in (*_COUNTS, *(setting.field for setting in TOPIC_SETTINGS.values()))
}
"""Name -> field of the settings that Kafka does not have."""
_OWN_TYPES: Final = {
    bool: ConfigType.BOOLEAN, int: ConfigType.LONG, tuple: ConfigType.LIST, str: ConfigType.STRING,
}  # fmt: skip
NAMES: Final = (*TOPIC_SETTINGS, TIMESTAMP_TYPE, SUBJECT, GROUP, *OWN_SETTINGS)
"""The settings that a topic can be created with."""


def show_plain(value: Any) -> str:
    """The value of a setting that Kafka does not have, as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


def topic_settings(
    definition: StreamDefinition, config: Config, *, writable: bool
) -> Iterator[DescribedSetting]:
    """The settings of a stream; `writable` says whether this listener may change them."""
    own: dict[str, Any] = asdict(definition.config)
    defaults: dict[str, Any] = asdict(config.streams)
    replicas = definition.config.replicas
    for text, name, about in (
        (definition.config.subject, SUBJECT, "NATS subject of the stream."),
        (definition.id.hex(), STREAM_ID, "Id of the stream, which is the topic's id."),
        (definition.config.group or "", GROUP, "NATS queue group of the subscription."),
        (LOG_APPEND_TIME, TIMESTAMP_TYPE, "A record has the time at which it was appended."),
    ):
        yield DescribedSetting(name, text, ConfigType.STRING, ConfigSource.TOPIC, about)
    for setting in TOPIC_SETTINGS.values():
        field = setting.field
        value, default = own[field], defaults[field]
        is_own = _differs(value, default)
        if field == "min_isr":
            value, default = (min_isr_in_force(each, replicas) for each in (value, default))
        source = _default_source(config, field)
        yield DescribedSetting(
            setting.name,
            setting.show(value),
            setting.type,
            ConfigSource.TOPIC if is_own else source,
            setting.about,
            read_only=not writable,
            default=(setting.broker_name, setting.show(default), source),
        )
    for name, field in OWN_SETTINGS.items():
        value, default = own[field], defaults[field]
        source = _default_source(config, field)
        yield DescribedSetting(
            name,
            show_plain(value),
            _OWN_TYPES[KEYS[f"streams.{field}"].type],
            ConfigSource.TOPIC if _differs(value, default) else source,
            KEYS[f"streams.{field}"].about,
            read_only=not writable or name in _FIXED,
            default=(f"{OWN}streams.{field}", show_plain(default), source),
        )


def _differs(value: Any, default: Any) -> bool:
    return set(value) != set(default) if isinstance(value, tuple) else bool(value != default)


def _default_source(config: Config, field: str) -> ConfigSource:
    is_set = f"streams.{field}" in config.origins
    return ConfigSource.STATIC_BROKER if is_set else ConfigSource.DEFAULT


def parse_setting(name: str, text: str) -> tuple[str, Any] | None:
    """The field of `StreamConfig` and its plain value; None where it only can have this value.

    Raises: ConfigError naming the setting, what was expected and found.
    """
    if name == TIMESTAMP_TYPE:
        if text != LOG_APPEND_TIME:
            raise ConfigError(f"{name} can only be {LOG_APPEND_TIME}, got {text!r}")
        return None
    if name in (SUBJECT, GROUP):
        return name.removeprefix(OWN), text
    field, value = _parse_value(name, text)
    if isinstance(value, int) and value > LONG_MAX:
        # The node that decides is told no number of more than 64 bits.
        raise ConfigError(f"{name} must be at most {LONG_MAX}, got {value}")
    return field, value


def _parse_value(name: str, text: str) -> tuple[str, Any]:
    """Raises: as `parse_setting`."""
    if name in OWN_SETTINGS:
        key = KEYS[f"streams.{OWN_SETTINGS[name]}"]
        value = check_value(key, parse_value(key, text, name), name)
        return OWN_SETTINGS[name], list(value) if isinstance(value, tuple) else value
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise _unknown(name)
    try:
        return setting.field, setting.parse(text.strip())
    except ValueError as error:
        expected = "a number" if "literal" in str(error) or "convert" in str(error) else str(error)
        raise ConfigError(f"{name} must be {expected}, got {text!r}") from None


def field_of(name: str) -> str | None:
    """The field of `StreamConfig` that a setting sets; None where it only can have one value.

    Raises: ConfigError for a setting that there is not, or that has no default.
    """
    if name == TIMESTAMP_TYPE:
        return None
    if name in (SUBJECT, STREAM_ID, GROUP):
        raise ConfigError(f"{name} has no default that it could return to")
    if name in OWN_SETTINGS:
        return OWN_SETTINGS[name]
    if name not in TOPIC_SETTINGS:
        raise _unknown(name)
    return TOPIC_SETTINGS[name].field


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"there is no setting {name!r} here; known are {', '.join(NAMES)}")
