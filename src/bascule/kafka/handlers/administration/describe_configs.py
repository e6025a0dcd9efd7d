"""DescribeConfigs: the settings of streams and of this node, under Kafka's names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from bascule.kafka.handlers.context import Context, find_stream
from bascule.kafka.settings.broker_settings import broker_settings
from bascule.kafka.settings.kinds import ConfigSource, DescribedSetting
from bascule.kafka.settings.topic_settings import topic_settings
from bascule.model import is_internal_stream
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.describe_configs import (
    BROKER,
    TOPIC,
    ConfigResource,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
)

SLICE: Final = 4
"""Resources that are described before other work of the event loop comes in between: about 1 ms."""
RESOURCES: Final = "only topics (2) and brokers (4) have settings here"


async def handle_describe_configs(
    request: DescribeConfigsRequest, context: Context
) -> DescribeConfigsResponse:
    """The settings of each topic and of this node; an error for other resources."""
    # Each once: a short request that repeats one must not cause a huge response.
    distinct = {(each.resource_type, each.resource_name): each for each in request.resources}
    results = []
    for number, resource in enumerate(distinct.values()):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        results.append(_described(resource, request, context))
    return DescribeConfigsResponse(results=results)


def _described(
    resource: ConfigResource, request: DescribeConfigsRequest, context: Context
) -> DescribedResource:
    kind, name = resource.resource_type, resource.resource_name
    settings: Iterable[DescribedSetting]
    if kind == TOPIC:
        stream, code = find_stream(context, name=name)
        if not stream:
            return DescribedResource(code, "unknown stream", kind, name)
        writable = context.config.client.administers and not is_internal_stream(name)
        settings = topic_settings(stream[0].definition, context.config, writable=writable)
    elif kind == BROKER:
        if not name:
            # The settings of all brokers that were set at run time, of which there are none.
            return DescribedResource(ErrorCode.NONE, None, kind, name)
        if name != str(context.node.node_id):
            reason = f"this is node {context.node.node_id}, ask node {name} for its settings"
            return DescribedResource(ErrorCode.INVALID_REQUEST, reason, kind, name)
        settings = broker_settings(context.config, host=context.host, port=context.port)
    else:
        reason = f"resource type {kind}: {RESOURCES}"
        return DescribedResource(ErrorCode.INVALID_REQUEST, reason, kind, name)
    wanted = set(resource.configuration_keys or ())
    configs = [
        _config(setting, request) for setting in settings if not wanted or setting.name in wanted
    ]
    configs.sort(key=lambda each: each.name)
    return DescribedResource(ErrorCode.NONE, None, kind, name, configs)


def _config(setting: DescribedSetting, request: DescribeConfigsRequest) -> DescribedConfig:
    return DescribedConfig(
        setting.name,
        setting.value,
        setting.read_only,
        setting.source,
        synonyms=_synonyms(setting) if request.include_synonyms else (),
        config_type=setting.type,
        documentation=setting.about if request.include_documentation else None,
    )


def _synonyms(setting: DescribedSetting) -> list[ConfigSynonym]:
    """Where the value is looked for, the first that is in force first."""
    found = []
    if setting.source is ConfigSource.TOPIC:
        found.append(ConfigSynonym(setting.name, setting.value, setting.source))
    if setting.default is not None:
        found.append(ConfigSynonym(*setting.default))
    return found
