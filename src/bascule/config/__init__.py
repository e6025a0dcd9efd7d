"""The configuration of a node, merged from: defaults < file < environment < flags.

No I/O: callers read the file and pass its text, the environment and the flags. Every value has its
origin, so an error names the key in the file, the variable or the flag.

    sections           the keys by section, with defaults, limits and descriptions
    keys               the table of all keys
    layers             reads each source into a layer, and merges the layers
    validation         checks values by key, and the rules that concern several keys
    stream_validation  checks the settings of a stream
    addresses          host:port of listeners
    advice             what to do about a listener that cannot be opened

`docs/configuration.md` lists every key; a test compares the two.
"""

from bascule.config.advice import listen_advice
from bascule.config.keys import KEYS, Key
from bascule.config.layers import (
    Layer,
    Value,
    layer_from_environment,
    layer_from_flags,
    layer_from_toml,
    merge,
)
from bascule.config.sections import (
    ClientConfig,
    ClusterConfig,
    Config,
    GroupsConfig,
    HttpConfig,
    LimitsConfig,
    LoggingConfig,
    NatsConfig,
    StreamDefaults,
    stream_config,
)
from bascule.config.stream_validation import check_stream_config, check_stream_values

__all__ = [
    "KEYS",
    "ClientConfig",
    "ClusterConfig",
    "Config",
    "GroupsConfig",
    "HttpConfig",
    "Key",
    "Layer",
    "LimitsConfig",
    "LoggingConfig",
    "NatsConfig",
    "StreamDefaults",
    "Value",
    "check_stream_config",
    "check_stream_values",
    "layer_from_environment",
    "layer_from_flags",
    "layer_from_toml",
    "listen_advice",
    "merge",
    "stream_config",
]
