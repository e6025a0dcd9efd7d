"""The settings of a bucket as those of a table, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from bascule.config import StreamDefaults
from bascule.config import stream_config as config_from_plain
from bascule.config.sections import TABLE_TTL_MS_MIN
from bascule.keyvalue.messages import BAD_REQUEST, ApiError, not_served, time_text
from bascule.keyvalue.requests import BucketConfig
from bascule.model import StreamConfig, StreamDefinition
from bascule.wire.tables.keys import BUCKET_PREFIX, bucket_subject

STREAM_PREFIX: Final = "KV_"
NS_PER_MS: Final = 1_000_000
_UNLIMITED: Final = (None, 0, -1)

_UNKNOWN_TO_TABLES: Final = (
    "mirror",
    "sources",
    "placement",
    "republish",
    "subject_transform",
    "allow_msg_counter",
    "allow_atomic",
    "allow_msg_schedules",
    "sealed",
    "no_ack",
    "discard_new_per_subject",
)
"""Settings of JetStream whose effect a table does not have, if they are set."""


def bucket_of(definition: StreamDefinition) -> str | None:
    """The bucket that a stream is; None if it is none."""
    subject = definition.config.subject
    name = subject.removeprefix(BUCKET_PREFIX).removesuffix(".>")
    if not definition.config.table or subject != bucket_subject(name) or "." in name:
        return None
    return name


def bucket_of_stream(stream: str) -> str:
    """The bucket of a JetStream stream's name. Raises: ApiError."""
    bucket = stream.removeprefix(STREAM_PREFIX)
    if bucket == stream:
        raise not_served(f"the stream {stream} is no bucket; those are named {STREAM_PREFIX}NAME")
    return bucket


def _settings(bucket: str, asked: BucketConfig) -> dict[str, Any]:
    """The settings of a table that JetStream's settings mean, if they are set. Raises: ApiError."""
    subject = bucket_subject(bucket)
    if (subjects := asked.subjects) not in ([subject], None):
        raise ApiError(400, BAD_REQUEST, f"a bucket has the subject {subject}, got {subjects}")
    for name in _UNKNOWN_TO_TABLES:
        if getattr(asked, name):
            raise not_served(f"the setting {name}")
    if (history := asked.max_msgs_per_subject) not in (*_UNLIMITED, 1):
        raise not_served(f"a history of {history} values; a table has 1, the latest")
    for name in ("max_bytes", "max_msgs"):
        if (limit := getattr(asked, name)) not in _UNLIMITED:
            raise not_served(f"{name} ({limit}); a table is compacted by key and has no limit")
    plain: dict[str, Any] = {}
    if (replicas := asked.num_replicas) not in _UNLIMITED:
        plain["replicas"] = replicas
    if (size := asked.max_msg_size) not in _UNLIMITED:
        plain["message_bytes_max"] = size
    if (age := asked.max_age) not in _UNLIMITED:
        plain["table_ttl_ms"] = _ms("max_age", age, ms_min=TABLE_TTL_MS_MIN)
    if (kept := asked.subject_delete_marker_ttl) not in _UNLIMITED:
        plain["tombstone_retention_ms"] = _ms("subject_delete_marker_ttl", kept)
    if window := asked.duplicate_window:
        plain["dedupe_window_ms"] = _ms("duplicate_window", window)
    elif window == 0:
        plain["dedupe_window_ms"] = 0
    return plain


def table_config(bucket: str, asked: BucketConfig, defaults: StreamDefaults) -> StreamConfig:
    """The table for a bucket that is created with JetStream's settings. Raises: ApiError."""
    fixed = {
        "key_from": "subject",
        "cleanup": ["compact"],
        "partitions": 1,
        "retention_ms_max": 0,
        "retention_bytes_max": 0,
        "retention_messages_max": 0,
        "discard": "old",
        "table": True,
    }
    subject = bucket_subject(bucket)
    plain = asdict(defaults) | fixed | _settings(bucket, asked)
    try:
        return config_from_plain(plain, subject=subject, group=None)
    except (TypeError, ValueError) as error:
        raise ApiError(400, BAD_REQUEST, str(error)) from error


def table_changes(bucket: str, asked: BucketConfig, present: StreamConfig) -> dict[str, Any]:
    """What a request to update a bucket changes, as `alter_stream` takes it.

    A setting without a value there stays as it is; only `max_age` says with 0 that there is none,
    as every client does. Raises: ApiError.
    """
    wanted = _settings(bucket, asked)
    if asked.max_age == 0:
        wanted["table_ttl_ms"] = 0
    if wanted.get("replicas", present.replicas) < present.replicas:
        raise not_served(
            f"fewer replicas than there are: asked {wanted['replicas']}, found {present.replicas}; "
            "use `bascule stream alter`"
        )
    return {name: value for name, value in wanted.items() if getattr(present, name) != value}


def _ms(name: str, ns: int | None, *, ms_min: int = 1) -> int:
    """A time that is set, in milliseconds. Raises: ApiError for one that would become 0, or is
    below 0."""
    if ns is None or ns < ms_min * NS_PER_MS:
        raise ApiError(
            400, BAD_REQUEST, f"{name} must be 0, or at least {ms_min * NS_PER_MS} ns, got {ns}"
        )
    return ns // NS_PER_MS


def stream_config(bucket: str, config: StreamConfig) -> dict[str, Any]:
    """The settings as JetStream would show them."""
    return {
        "name": f"{STREAM_PREFIX}{bucket}",
        "description": "",
        "subjects": [config.subject],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": config.table_ttl_ms * NS_PER_MS,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": config.tombstone_retention_ms * NS_PER_MS,
        "max_msgs_per_subject": 1,
        "max_msg_size": config.message_bytes_max,
        "discard": "new",
        "storage": "file",
        "num_replicas": config.replicas,
        "duplicate_window": config.dedupe_window_ms * NS_PER_MS,
        "compression": "none",
        "allow_direct": True,
        "mirror_direct": False,
        "sealed": False,
        "deny_delete": True,
        "deny_purge": False,
        "allow_rollup_hdrs": True,
        "consumer_limits": {},
    }


def stream_info(
    bucket: str,
    definition: StreamDefinition,
    *,
    keys: int,
    size_bytes: int,
    first: int,
    end: int,
    consumers: int,
) -> dict[str, Any]:
    """A bucket as JetStream's stream: `first` and `end` are offsets, a sequence is one more."""
    created = time_text(definition.created_ms)
    return {
        "config": stream_config(bucket, definition.config),
        "created": created,
        "state": {
            "messages": keys,
            "bytes": size_bytes,
            "first_seq": first + 1,
            "first_ts": created,
            "last_seq": end,
            "last_ts": created,
            "num_subjects": keys,
            "consumer_count": consumers,
        },
        "cluster": {"name": "bascule"},
    }
