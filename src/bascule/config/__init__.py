"""What an operator may set, and how its sources are merged: defaults < file < environment < flags.

No I/O: callers read the file and hand in its text, the environment and the flags. Every value
knows where it came from, so that an error names the file's key, the variable or the flag.
`docs/configuration.md` lists every key; a test holds the two together.
"""

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
    Config,
    HttpConfig,
    LimitsConfig,
    LoggingConfig,
    NatsConfig,
    StreamDefaults,
    stream_config,
)
from bascule.config.stream_rules import check_stream_config, check_stream_values

__all__ = [
    "KEYS",
    "ClientConfig",
    "Config",
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
    "merge",
    "stream_config",
]
