"""Messages described as data: annotated dataclasses, one class for all versions of a message.

A field's annotation says how it looks on the wire and in which versions it exists, in the
notation of the protocol's own schema files ("9+", "7-12", "0"):

    current_leader_epoch: Annotated[Int32, Versions("9+")] = -1
    topics: NullableArray[MetadataRequestTopic] = ()

A field that a version does not have decodes to its default and is left out when encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Union, cast, get_args, get_origin
from typing import get_type_hints as type_hints

from bascule.wire.primitives import Piece

VERSION_MAX = 32_767
F = TypeVar("F", bound=Callable[..., Any])


def once(function: F) -> F:
    """Keep every result for good: the arguments are classes and versions, so there are few."""
    return cast("F", cache(function))


class Versions:
    """A closed range of versions, written "4-12", "9+" or "0"."""

    __slots__ = ("first", "last")

    def __init__(self, text: str) -> None:
        first, dash, last = text.rstrip("+").partition("-")
        self.first = int(first)
        self.last = VERSION_MAX if text.endswith("+") else int(last) if dash else self.first

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __repr__(self) -> str:
        return f"{self.first}+" if self.last == VERSION_MAX else f"{self.first}-{self.last}"


ALWAYS = Versions("0+")
NEVER = Versions("1-0")


class Nullable(Versions):
    """The versions in which null may be sent; without it, wherever the annotation has None."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """The field is a tagged field (KIP-482) and is sent only where it differs from its default."""

    tag: int


class Kind(Enum):
    """Wire types; the value is the struct code of those with a fixed size."""

    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    BOOL = "?"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    STRUCT = "struct"
    ARRAY = "array"


FIXED_BYTES = {
    Kind.INT8: 1,
    Kind.INT16: 2,
    Kind.INT32: 4,
    Kind.INT64: 8,
    Kind.BOOL: 1,
    Kind.UUID: 16,
}

T = TypeVar("T")
Int8 = Annotated[int, Kind.INT8]
Int16 = Annotated[int, Kind.INT16]
Int32 = Annotated[int, Kind.INT32]
Int64 = Annotated[int, Kind.INT64]
Bool = Annotated[bool, Kind.BOOL]
Uuid = Annotated[bytes, Kind.UUID]
"""16 bytes."""
String = Annotated[str, Kind.STRING]
NullableString = Annotated[str | None, Kind.STRING]
Records = Annotated[Piece | None, Kind.BYTES]
"""Record batches: decoded to a view of the frame; encoded from bytes or a `SizedPiece`."""
Array = Annotated[Sequence[T], Kind.ARRAY]
NullableArray = Annotated[Sequence[T] | None, Kind.ARRAY]

NO_ID = bytes(16)
"""The topic id that stands for "none"."""


class Structure:
    """Base of every message and of the structures inside them: slotted dataclasses."""

    __slots__ = ()


class Message(Structure):
    """A request or response body."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[Versions]
    """Versions that can be encoded and decoded."""
    FLEXIBLE: ClassVar[Versions] = NEVER
    """Versions with compact lengths and tagged fields."""


ResponseT = TypeVar("ResponseT", bound=Message, covariant=True)


class Request(Message, Generic[ResponseT]):
    """A request; its type parameter and `RESPONSE` say what answers it."""

    __slots__ = ()
    RESPONSE: ClassVar[type[Message]]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a structure."""

    name: str
    kind: Kind
    versions: Versions
    nullable: Versions
    tag: int | None
    default: object
    item: ItemSpec | None
    """What an array holds."""
    structure: type[Structure] | None
    """The class of a STRUCT field."""


@dataclass(frozen=True, slots=True)
class ItemSpec:
    """What an array holds."""

    kind: Kind
    structure: type[Structure] | None


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The hint without `| None`, and whether it had it."""
    if get_origin(hint) in (Union, UnionType):
        rest = tuple(a for a in get_args(hint) if a is not NoneType)
        if len(rest) < len(get_args(hint)):
            return rest[0] if len(rest) == 1 else Union[rest], True  # noqa: UP007
    return hint, False


def _peel(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """(bare type, annotations from the inside out, may be None)."""
    hint, nullable = _without_none(hint)
    marks: tuple[Any, ...] = ()
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        marks += tuple(more)
        hint, inner = _without_none(hint)
        nullable = nullable or inner
    return hint, marks, nullable


def _kind(bare: Any, marks: tuple[Any, ...], where: str) -> tuple[Kind, type[Structure] | None]:
    for mark in marks:
        if isinstance(mark, Kind):
            return mark, None
    assert isinstance(bare, type), f"{where} has no wire type"
    assert issubclass(bare, Structure), f"{where} has no wire type"
    return Kind.STRUCT, bare


def _field_spec(where: str, name: str, hint: Any, default: object) -> FieldSpec:
    bare, marks, may_be_none = _peel(hint)
    kind, structure = _kind(bare, marks, where)
    item = None
    if kind is Kind.ARRAY:
        item_bare, item_marks, _ = _peel(get_args(bare)[0])
        item = ItemSpec(*_kind(item_bare, item_marks, where))
    versions, nullable, tag = ALWAYS, ALWAYS if may_be_none else NEVER, None
    for mark in marks:
        if isinstance(mark, Nullable):
            nullable = mark
        elif isinstance(mark, Versions):
            versions = mark
        elif isinstance(mark, Tagged):
            tag = mark.tag
    return FieldSpec(name, kind, versions, nullable, tag, default, item, structure)


@once
def field_specs(structure: type[Structure]) -> tuple[FieldSpec, ...]:
    """The fields of `structure` in wire order, which is the order of its constructor."""
    hints = type_hints(structure, include_extras=True)
    specs = []
    for field in fields(structure):  # type: ignore[arg-type]
        where = f"{structure.__name__}.{field.name}"
        assert field.default is not MISSING, f"{where} needs a default"
        specs.append(_field_spec(where, field.name, hints[field.name], field.default))
    return tuple(specs)


@once
def bytes_min(structure: type[Structure], version: int, flexible: bool) -> int:
    """The fewest bytes that `structure` can take in `version`."""
    total = 1 if flexible else 0
    for spec in field_specs(structure):
        if spec.tag is None and version in spec.versions:
            total += _kind_bytes_min(spec.kind, spec.structure, version, flexible)
    return total


def _kind_bytes_min(
    kind: Kind, structure: type[Structure] | None, version: int, flexible: bool
) -> int:
    if structure is not None:
        return bytes_min(structure, version, flexible)
    if kind in FIXED_BYTES:
        return FIXED_BYTES[kind]
    return 1 if flexible else 2 if kind is Kind.STRING else 4


def item_bytes_min(item: ItemSpec, version: int, flexible: bool) -> int:
    """The fewest bytes one item of an array can take."""
    return _kind_bytes_min(item.kind, item.structure, version, flexible)
