"""Descriptions of messages: annotated dataclasses, one class for all versions of a message.

A field's annotation gives its type on the wire and the versions that have it, in the notation of
Kafka's message schemas ("9+", "7-12", "0"):

    current_leader_epoch: Annotated[Int32, Versions("9+")] = -1
    topics: NullableArray[MetadataRequestTopic] = ()

A field that a version does not have is decoded to its default and omitted when encoding.
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
ITEMS_AT_ONCE = 500
"""Structures of a response that is encoded on the event loop: some ms. See `Message.is_large`."""
F = TypeVar("F", bound=Callable[..., Any])


def memoize(function: F) -> F:
    """Cache every result. The arguments are classes and versions, so there are few."""
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
    """The versions in which null is allowed. Default: all versions if the annotation has None."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tagged field (KIP-482). It is sent only if it differs from its default."""

    tag: int


class Kind(Enum):
    """Types on the wire. For a type of fixed size the value is its struct code."""

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
Bytes = Annotated[bytes | memoryview, Kind.BYTES]
"""Decoded to a view of the frame, also where the schema forbids null: then it may be None."""
Records = Annotated[Piece | None, Kind.BYTES]
"""Record batches. Decoded to a view of the frame, encoded from bytes or a `SizedPiece`."""
Array = Annotated[Sequence[T], Kind.ARRAY]
NullableArray = Annotated[Sequence[T] | None, Kind.ARRAY]

NO_ID = bytes(16)
"""The topic id for "no topic"."""


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

    @property
    def is_large(self) -> bool:
        """Whether encoding takes some ms, which is too long for an event loop."""
        return False


ResponseT = TypeVar("ResponseT", bound=Message, covariant=True)


class Request(Message, Generic[ResponseT]):
    """A request. Its type parameter and `RESPONSE` are the class of its response."""

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
    """The items of an ARRAY field."""
    structure: type[Structure] | None
    """The class of a STRUCT field."""


@dataclass(frozen=True, slots=True)
class ItemSpec:
    """The items of an array."""

    kind: Kind
    structure: type[Structure] | None


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The hint without `| None`, and whether it had `| None`."""
    if get_origin(hint) in (Union, UnionType):
        rest = tuple(a for a in get_args(hint) if a is not NoneType)
        if len(rest) < len(get_args(hint)):
            return rest[0] if len(rest) == 1 else Union[rest], True  # noqa: UP007
    return hint, False


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """(bare type, annotations from inside to outside, whether it may be None)."""
    hint, nullable = _without_none(hint)
    annotations: tuple[Any, ...] = ()
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        annotations += tuple(more)
        hint, inner = _without_none(hint)
        nullable = nullable or inner
    return hint, annotations, nullable


def _kind(
    bare: Any, annotations: tuple[Any, ...], where: str
) -> tuple[Kind, type[Structure] | None]:
    for annotation in annotations:
        if isinstance(annotation, Kind):
            return annotation, None
    assert isinstance(bare, type), f"{where} has no wire type"
    assert issubclass(bare, Structure), f"{where} has no wire type"
    return Kind.STRUCT, bare


def _field_spec(where: str, name: str, hint: Any, default: object) -> FieldSpec:
    bare, annotations, may_be_none = _unwrap(hint)
    kind, structure = _kind(bare, annotations, where)
    item = None
    if kind is Kind.ARRAY:
        item_bare, item_annotations, _ = _unwrap(get_args(bare)[0])
        item = ItemSpec(*_kind(item_bare, item_annotations, where))
    versions, nullable, tag = ALWAYS, ALWAYS if may_be_none else NEVER, None
    for annotation in annotations:
        if isinstance(annotation, Nullable):
            nullable = annotation
        elif isinstance(annotation, Versions):
            versions = annotation
        elif isinstance(annotation, Tagged):
            tag = annotation.tag
    return FieldSpec(name, kind, versions, nullable, tag, default, item, structure)


@memoize
def field_specs(structure: type[Structure]) -> tuple[FieldSpec, ...]:
    """The fields of `structure` in the order on the wire, which is the order of its constructor."""
    hints = type_hints(structure, include_extras=True)
    specs = []
    for field in fields(structure):  # type: ignore[arg-type]
        where = f"{structure.__name__}.{field.name}"
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()  # a structure that is never null
        assert default is not MISSING, f"{where} needs a default"
        specs.append(_field_spec(where, field.name, hints[field.name], default))
    return tuple(specs)


@memoize
def bytes_min(structure: type[Structure], version: int, flexible: bool) -> int:
    """The minimum size of `structure` in `version`."""
    total = 1 if flexible else 0
    for spec in field_specs(structure):
        if spec.tag is None and version in spec.versions:
            if spec.structure is not None and version in spec.nullable:
                total += 1
            else:
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
    """The minimum size of one item of an array."""
    return _kind_bytes_min(item.kind, item.structure, version, flexible)
