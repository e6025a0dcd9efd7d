"""The requests to JetStream's API, from their subjects and bodies. Source: NATS ADR-1, ADR-31."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from bascule.keyvalue.messages import BAD_REQUEST, ApiError, not_served

T = TypeVar("T")

API: Final = "$JS.API."
WORDS: Final = {
    "INFO": 1,
    "STREAM.NAMES": 2,
    "STREAM.LIST": 2,
    "STREAM.INFO": 2,
    "STREAM.CREATE": 2,
    "STREAM.UPDATE": 2,
    "STREAM.DELETE": 2,
    "STREAM.PURGE": 2,
    "STREAM.MSG.GET": 3,
    "STREAM.MSG.DELETE": 3,
    "DIRECT.GET": 2,
    "CONSUMER.CREATE": 2,
    "CONSUMER.DURABLE.CREATE": 3,
    "CONSUMER.INFO": 2,
    "CONSUMER.DELETE": 2,
    "CONSUMER.NAMES": 2,
    "CONSUMER.LIST": 2,
}
"""The operations that are known, and how many tokens of the subject each of them is."""
_KINDS: Final = {"INFO": "account_info", "DIRECT.GET": "stream_msg_get"}


class PageRequest(msgspec.Struct):
    """Of a list."""

    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class MessageRequest(msgspec.Struct):
    """Of one message."""

    last_by_subj: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=0)] | None = None
    next_by_subj: str | None = None


class SubjectPurgeRequest(msgspec.Struct):
    """Of the messages of a subject."""

    filter: str | None = None
    keep: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many of the latest ones stay."""


class BucketConfig(msgspec.Struct):
    """The settings of a stream, as far as they matter; those without a type here are refused if
    they are set."""

    subjects: list[str] | None = None
    max_msgs_per_subject: int | None = None
    max_age: int | None = None
    max_bytes: int | None = None
    max_msgs: int | None = None
    max_msg_size: int | None = None
    num_replicas: int | None = None
    duplicate_window: Annotated[int, msgspec.Meta(ge=0)] | None = None
    mirror: Any = None
    sources: Any = None
    placement: Any = None
    republish: Any = None
    subject_transform: Any = None
    subject_delete_marker_ttl: int | None = None
    """Nanoseconds, as `max_age`."""
    allow_msg_counter: Any = None
    allow_atomic: Any = None
    allow_msg_schedules: Any = None
    sealed: Any = None
    no_ack: Any = None
    discard_new_per_subject: Any = None


class ConsumerConfig(msgspec.Struct, omit_defaults=True):
    """The settings of a consumer, as far as they matter."""

    deliver_subject: str | None = None
    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    ack_policy: str = "none"
    deliver_policy: str = "all"
    opt_start_seq: Annotated[int, msgspec.Meta(ge=1)] | None = None
    replay_policy: str = "instant"
    filter_subject: str | None = None
    filter_subjects: list[str] | None = None
    flow_control: bool = False
    idle_heartbeat: Annotated[int, msgspec.Meta(ge=0)] = 0
    headers_only: bool = False
    max_deliver: int | None = None
    ack_wait: int | None = None
    max_ack_pending: int | None = None
    inactive_threshold: int | None = None
    num_replicas: int | None = None
    mem_storage: bool = False


class ConsumerRequest(msgspec.Struct):
    """Of a consumer that is to be made."""

    config: ConsumerConfig


class ApiRequest(NamedTuple):
    """A request."""

    operation: str
    """One of WORDS."""
    stream: str
    """Its JetStream name; empty where the operation has none."""
    rest: str
    """What the subject has behind the stream: a consumer, a subject, both or nothing."""
    body: bytes

    @property
    def kind(self) -> str:
        """The type of the answer."""
        found = _KINDS.get(self.operation, self.operation.lower().replace(".", "_"))
        return f"{found.replace('_durable', '')}_response"

    def decode(self, kind: type[T]) -> T:
        """The body, a JSON object or nothing. Raises: ApiError."""
        try:
            return msgspec.json.decode(self.body.strip() or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise ApiError(400, BAD_REQUEST, f"the request is not valid: {error}") from error


def parse_request(subject: str, body: bytes) -> ApiRequest:
    """Raises: ApiError for an operation that is not known."""
    tokens = subject.removeprefix(API).split(".")
    for count in (3, 2, 1):
        operation = ".".join(tokens[:count])
        if WORDS.get(operation) == count:
            stream = tokens[count] if len(tokens) > count else ""
            return ApiRequest(operation, stream, ".".join(tokens[count + 1 :]), body)
    raise not_served(f"the request {subject}")
