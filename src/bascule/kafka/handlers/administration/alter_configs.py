"""IncrementalAlterConfigs: settings of streams are changed, under Kafka's names."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Final

from bascule.errors import BasculeError, ConfigError, UnknownStream
from bascule.kafka.handlers.administration.access import (
    CHANGES_MAX,
    TOO_MANY,
    change_each,
    described_error,
    named_twice,
    refusal,
)
from bascule.kafka.handlers.context import Context, find_stream
from bascule.kafka.settings.topic_settings import field_of, parse_setting
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.administration.incremental_alter_configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    AlterableConfig,
    AlteredResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ResourceToAlter,
)
from bascule.wire.messages.describe_configs import TOPIC

ONLY_TOPICS: Final = (
    "only topics (2) have settings that clients may change; those of a node are in its "
    "configuration file"
)


async def handle_incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, client_id: str | None, context: Context
) -> IncrementalAlterConfigsResponse:
    """Change the settings of each topic that the request names; the others stay."""
    refused = refusal(context, client_id, "IncrementalAlterConfigs")
    twice = named_twice(each.resource_name for each in request.resources)

    async def alter(resource: ResourceToAlter) -> AlteredResource:
        kind, name = resource.resource_type, resource.resource_name
        answer = partial(AlteredResource, resource_type=kind, resource_name=name)
        if refused:
            return answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED, refused)
        if kind != TOPIC:
            return answer(ErrorCode.INVALID_REQUEST, f"resource type {kind}: {ONLY_TOPICS}")
        if name in twice:
            return answer(ErrorCode.INVALID_REQUEST, "the request names this topic twice")
        try:
            changes = _changes(resource, context)
            if request.validate_only:
                context.streams.check_alteration(name, changes)
            else:
                await context.streams.alter_stream(name, changes)
        except (BasculeError, OSError) as error:
            return answer(*described_error(error))
        return answer(ErrorCode.NONE, None)

    responses = await change_each(alter, request.resources[:CHANGES_MAX])
    for each in request.resources[CHANGES_MAX:]:
        kind, name = each.resource_type, each.resource_name
        responses.append(AlteredResource(ErrorCode.INVALID_REQUEST, TOO_MANY, kind, name))
    return IncrementalAlterConfigsResponse(responses=responses)


def _changes(resource: ResourceToAlter, context: Context) -> dict[str, Any]:
    """Field -> plain value of the settings to change. Raises: ConfigError, UnknownStream."""
    if twice := named_twice(each.name for each in resource.configs):
        raise ConfigError(f"{min(twice)} is changed twice")
    changes = {}
    for asked in resource.configs:
        change = _change(asked, resource.resource_name, context)
        if change is not None:
            changes[change[0]] = change[1]
    return changes


def _change(asked: AlterableConfig, stream: str, context: Context) -> tuple[str, Any] | None:
    name, operation = asked.name, asked.config_operation
    if operation == DELETE:
        field = field_of(name)
        if field is None:
            return None
        value = asdict(context.config.streams)[field]
        return field, list(value) if isinstance(value, tuple) else value
    if operation not in (SET, APPEND, SUBTRACT):
        raise ConfigError(f"{name}: operation {operation} is not one of 0 to 3")
    if asked.value is None:
        raise ConfigError(f"{name} has no value")
    change = parse_setting(name, asked.value)
    if change is None or operation == SET:
        return change
    field, words = change
    if not isinstance(words, list):
        raise ConfigError(f"{name} is not a list: set it")
    found, _ = find_stream(context, name=stream)
    if not found:
        raise UnknownStream(stream)
    present = [str(word) for word in getattr(found[0].definition.config, field)]
    if operation == APPEND:
        return field, present + [word for word in words if word not in present]
    return field, [word for word in present if word not in words]
