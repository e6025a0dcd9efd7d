"""Loads a declaration from a file: TOML, settings, environment, keys, types. Pure except for
`load`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.declare.dispatch import build_spec
from bascule.pipeline.declare.faults import DeclarationFaults, convert
from bascule.pipeline.declare.sections import Declaration
from bascule.pipeline.declare.table_validation import check_tables
from bascule.pipeline.declare.validation import check

VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""`${NAME}`, `${NAME:-default}`, and `$${` for a literal `${`."""
PATH_KEYS: Final = (
    "pipeline.checkpoint",
    "pipeline.report",
    "value.schema_file",
    "value.descriptor_file",
)

STAND_INS: Final[Mapping[str, Any]] = {
    "pipeline.name": "unnamed",
    "rollup.sql": "SELECT * FROM records",
    "rollup.watermark.delay": "0 seconds",
}
"""Values for required keys that are missing or wrong, so that the other keys are checked too."""

Document = dict[str, Any]


def load(
    path: Path, *, environment: Mapping[str, str], settings: Iterable[str] = ()
) -> Declaration:
    """Load and check the declaration in a file. No node and no Spark is needed.

    `settings` are `key=value` with dotted keys. They take precedence over the file.

    Raises: InvalidDeclaration with every fault, each with the file and the key; ConfigError for a
    file that cannot be read or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{path} cannot be read: {why}") from error
    faults = DeclarationFaults(str(path))
    declaration = _read(text, str(path), faults, environment, settings)
    if declaration is not None:
        check(declaration, faults)
        spec = build_spec(declaration, faults)
        check_tables(declaration, spec, faults)
    faults.refuse()
    assert declaration is not None, "a declaration that cannot be read has faults"
    return declaration


def parse(
    text: str, origin: str, *, environment: Mapping[str, str], settings: Iterable[str] = ()
) -> Declaration:
    """Parse the declaration in `text`. Paths are relative to the folder of the file `origin`.

    Raises: ConfigError.
    """
    faults = DeclarationFaults(origin)
    declaration = _read(text, origin, faults, environment, settings)
    faults.refuse()
    assert declaration is not None, "a declaration that cannot be read has faults"
    return declaration


def _read(
    text: str,
    origin: str,
    faults: DeclarationFaults,
    environment: Mapping[str, str],
    settings: Iterable[str],
) -> Declaration | None:
    """The declaration without its faulty keys; None if that says too little to be checked.

    Raises: ConfigError if the text is not TOML.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{origin} is not valid TOML: brackets nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is not valid TOML: {error}") from error
    for setting in settings:
        faults.attempt("", f"--set {setting!r}", partial(apply_setting, document, setting))
    expanded = expand(document, environment, faults)
    resolve_paths(expanded, Path(origin).parent)
    return _section(expanded, Declaration, faults, "")


def apply_setting(document: Document, setting: str) -> None:
    """Apply one setting such as `table.format=delta`. The value is parsed as TOML; if that fails,
    it is text. What follows `spark` is one key with dots, with or without Spark's own `spark.`.

    Raises: ConfigError for a malformed setting or one below a plain value.
    """
    key, equals, text = setting.partition("=")
    names = key.strip().split(".")
    if names[0] == "spark" and len(names) > 1 and all(names):
        rest = ".".join(names[1:])
        names = ["spark", rest if rest.startswith("spark.") else f"spark.{rest}"]
    if not equals or not all(names):
        raise ConfigError("expected key=value, such as table.format=delta")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    inner = document
    for name in names[:-1]:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{name} is a value, not a section")
    inner[names[-1]] = value


def expand(
    value: Any, environment: Mapping[str, str], faults: DeclarationFaults, key: str = ""
) -> Any:
    """Replace every `${NAME}` in the strings of `value`.

    A variable that is not set is a fault. Its text has the key, never a value.
    """
    if isinstance(value, dict):
        return {
            name: expand(inner, environment, faults, f"{key}.{name}" if key else name)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [expand(inner, environment, faults, key) for inner in value]
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name is None:
            return "${"
        if name not in environment and default is None:
            faults.add(key, f"{key} names ${{{name}}}, which is not set")
        return environment.get(name) or default or ""

    return VARIABLE.sub(variable, value)


S = TypeVar("S", bound=msgspec.Struct)


def _section(value: Document, section: type[S], faults: DeclarationFaults, key: str) -> S | None:
    """Convert a section without its faulty keys; None if a required key has no usable value."""
    fields = {field.name: field for field in msgspec.structs.fields(section)}
    kept: dict[str, Any] = {}
    for name, inner in value.items():
        full = f"{key}.{name}" if key else name
        if name not in fields:
            faults.add(full, f"{full} is unknown; {_near(name, section, key)}")
            continue
        nested = _section_in(fields[name].type)
        if nested is not None and isinstance(inner, dict):
            converted: Any = _section(inner, nested, faults, full)
        elif isinstance(inner, dict):
            sound = {n: each for n, each in inner.items() if f"{full}.{n}" not in faults}
            converted = convert(sound, fields[name].type, faults, full)
        elif full in faults:
            continue
        else:
            converted = convert(inner, fields[name].type, faults, full)
        if converted is not None:
            kept[name] = converted
    for name, field in fields.items():
        full = f"{key}.{name}" if key else name
        if not field.required or name in kept:
            continue
        if full not in faults:
            faults.add(full, f"{full} is missing")
        if full not in STAND_INS:
            return None
        kept[name] = STAND_INS[full]
    return section(**kept)


def _section_in(kind: Any) -> type[msgspec.Struct] | None:
    """The section among the members of a type."""
    for part in (kind, *get_args(kind)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


def _near(name: str, section: type[msgspec.Struct], key: str) -> str:
    """Suggest the most likely key, including a known key that was put in a wrong section."""
    here = section.__struct_fields__
    prefix = f"{key}." if key else ""
    near = [prefix + field for field in difflib.get_close_matches(name, here, n=1, cutoff=0.7)]
    near = near or [other for other in all_keys() if other.rpartition(".")[2] == name]
    near = near or [prefix + field for field in difflib.get_close_matches(name, here, n=1)]
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(prefix + field for field in here)}"


def all_keys(section: type[msgspec.Struct] = Declaration, key: str = "") -> list[str]:
    """The dotted names of all keys. A section that takes any key is one entry."""
    found = []
    for name, kind in get_type_hints(section).items():
        full = f"{key}.{name}" if key else name
        inner = [
            part
            for part in (kind, *get_args(kind))
            if isinstance(part, type) and issubclass(part, msgspec.Struct)
        ]
        found += all_keys(inner[0], full) if inner else [full]
    return found


def resolve_paths(document: Document, folder: Path) -> None:
    """Make relative paths absolute, starting from the file's folder. URIs stay unchanged."""
    for key in PATH_KEYS:
        section, _, name = key.partition(".")
        _resolve(document.get(section), name, folder)
    _resolve(document.get("table"), "location", folder)
    compaction = document.get("compact_lake")
    if isinstance(compaction, dict):
        _resolve(compaction.get("into"), "location", folder)


def _resolve(section: Any, name: str, folder: Path) -> None:
    if isinstance(section, dict):
        path = section.get(name)
        if isinstance(path, str) and path and "://" not in path:
            section[name] = str((folder / path).absolute())
