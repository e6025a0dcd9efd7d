"""The requests to JetStream's API, from their subjects and bodies. Source: NATS ADR-1, ADR-31."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from bascule.keyvalue.messages import BAD_REQUEST, ApiError, not_served

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

    def fields(self) -> dict[str, Any]:
        """The body, a JSON object or nothing. Raises: ApiError."""
        if not self.body.strip():
            return {}
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ApiError(400, BAD_REQUEST, f"the request is no JSON object: {error}") from error


def parse_request(subject: str, body: bytes) -> ApiRequest:
    """Raises: ApiError for an operation that is not known."""
    tokens = subject.removeprefix(API).split(".")
    for count in (3, 2, 1):
        operation = ".".join(tokens[:count])
        if WORDS.get(operation) == count:
            stream = tokens[count] if len(tokens) > count else ""
            return ApiRequest(operation, stream, ".".join(tokens[count + 1 :]), body)
    raise not_served(f"the request {subject}")
