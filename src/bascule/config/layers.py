"""Reads each source of configuration into a layer, and merges layers into a checked `Config`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bascule.config.keys import ENVIRONMENT_PREFIX, KEYS, SECTIONS
from bascule.config.sections import Config
from bascule.config.validation import check_config, check_value, parse_value
from bascule.errors import ConfigError

ENVIRONMENT_RESERVED: Final = frozenset({"BASCULE_SERVER", "BASCULE_PURE", "BASCULE_CONFIG"})
"""Variables of the CLI and of the build, which are not configuration keys."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of one source. `origin` names the place where it was set, for error texts."""

    raw: object
    origin: str


Layer = Mapping[str, Value]
"""Dotted key -> value, from one source."""


def layer_from_toml(text: str, path: str) -> Layer:
    """The layer of a TOML file; `path` is only for error texts.

    Raises: ConfigError for invalid TOML, an unknown section or an unknown key.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path} is not valid TOML: brackets nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    layer: dict[str, Value] = {}
    for name, item in document.items():
        if isinstance(item, dict):
            if name not in SECTIONS:
                raise _unknown(f"section [{name}]", path, name, tuple(SECTIONS), wrap="[{}]")
            for inner, value in item.items():
                key = f"{name}.{inner}"
                _require_known(key, path)
                layer[key] = Value(value, f"{key} in {path}")
        elif name in SECTIONS:
            raise ConfigError(f"{name} in {path} must be a section: write [{name}]")
        else:
            _require_known(name, path)
            layer[name] = Value(item, f"{name} in {path}")
    return layer


def layer_from_environment(environment: Mapping[str, str]) -> Layer:
    """The layer of the BASCULE_* variables, converted to the types of their keys.

    Raises: ConfigError for an unknown BASCULE_ variable, or a value of the wrong type.
    """
    by_variable = {key.variable: key for key in KEYS.values()}
    layer: dict[str, Value] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in ENVIRONMENT_RESERVED:
            continue
        key = by_variable.get(variable)
        if key is None:
            known = (*by_variable, *sorted(ENVIRONMENT_RESERVED))
            raise _unknown_variable(variable, known)
        layer[key.name] = Value(parse_value(key, text, variable), variable)
    return layer


def layer_from_flags(flags: Mapping[str, tuple[str, object]]) -> Layer:
    """The layer of the command line: key -> (the flag as typed, its value or None if absent)."""
    return {key: Value(value, flag) for key, (flag, value) in flags.items() if value is not None}


def merge(*layers: Layer) -> Config:
    """The merged configuration: later layers override earlier ones and the defaults.

    Raises: ConfigError naming the key, where it was set, the value found and the values allowed.
    """
    merged: dict[str, Value] = {}
    for layer in layers:
        merged.update(layer)
    values: dict[str, dict[str, Any]] = {section: {} for section in ["", *SECTIONS]}
    for name, value in merged.items():
        section, _, inner = name.rpartition(".")
        values[section][inner] = check_value(KEYS[name], value.raw, value.origin)
    sections = {section: cls(**values[section]) for section, cls in SECTIONS.items()}
    config = Config(
        **values[""], **sections, origins={name: value.origin for name, value in merged.items()}
    )
    check_config(config)
    return config


def _require_known(key: str, source: str) -> None:
    if key not in KEYS:
        raise _unknown(f"key {key!r}", source, key, tuple(KEYS))


def _unknown_variable(variable: str, known: Sequence[str]) -> ConfigError:
    """What all names begin with says nothing of how near two of them are."""
    names = [name.removeprefix(ENVIRONMENT_PREFIX) for name in known]
    name = variable.removeprefix(ENVIRONMENT_PREFIX)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = (
        f"did you mean {ENVIRONMENT_PREFIX}{near[0]}?"
        if near
        else "docs/configuration.md lists those that are known"
    )
    return ConfigError(f"unknown variable {variable} in the environment; {hint}")


def _unknown(
    what: str, source: str, name: str, known: Sequence[str], *, wrap: str = "{}"
) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if not near and "." in name:
        # The same key in another section is a better guess than another key of this section.
        last = name.rpartition(".")[2]
        near = [other for other in known if other.rpartition(".")[2] == last][:1]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {wrap.format(near[0])}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"unknown {what} in {source}; {hint}")
