"""What all public values share: checks of single fields, JSON there and back, instants as microseconds.

Owns the checks that do not depend on one value and the codec. Does not own any value (``records.py``,
``results.py``) or limits of size (``limits.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

from vmem_core import display
from vmem_core.errors import InvalidRequestError
from vmem_core.text import check_string, check_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DEEPEST = 200  # beyond any sensible limit, and far from Python's own recursion limit
T = TypeVar("T")


class Value:
    """A public value: frozen, checked on construction, and JSON there and back."""

    __slots__ = ()
    _decoders: ClassVar[dict[str, Callable[[Any, str], Any]]] = {}

    def to_json(self) -> dict[str, Any]:
        """The value as a JSON object; ``from_json`` gives an equal value back."""
        return {name: _encode(getattr(self, name)) for name in _shape_of(self)[0]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> Self:
        """Build the value from what ``to_json`` gave, or from that as JSON text.

        Raises:
            InvalidRequestError: For text that is no JSON object, unknown or missing fields, and every fault that
                the constructor refuses.
        """
        return cls(**_decode_fields(cls, data))

    def _repr_html_(self) -> str:
        return display.other(type(self).__name__, self.to_json())


def builder(cls: type[T]) -> Callable[..., T]:
    """A maker of values whose fields were checked before: positional, all of them, and nothing is checked again.

    Args:
        cls: A frozen dataclass with slots.

    Returns:
        A callable that takes every field in the order of the class. What it is given must be what the constructor
        would have made of it: tuples, UTC instants, metadata that nobody else holds.
    """
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    known: dict[str, Any] = {f"set_{name}": getattr(cls, name).__set__ for name in names}
    steps = "".join(f"    set_{name}(made, {name})\n" for name in names)
    # Written out, as dataclasses writes a constructor: a loop over the fields would take twice as long.
    code = f"def build({', '.join(names)}):\n    made = new(cls)\n{steps}    return made\n"
    made: dict[str, Any] = {}
    exec(code, known | {"new": object.__new__, "cls": cls}, made)
    build: Callable[..., T] = made["build"]
    return build


@functools.cache
def _shape(cls: Any) -> tuple[tuple[str, ...], frozenset[str], tuple[str, ...]]:
    """The fields of a value in order, as a set, and those without a default."""
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields)
    missing = dataclasses.MISSING
    needed = tuple(f.name for f in fields if f.default is missing and f.default_factory is missing)
    return names, frozenset(names), needed


def _shape_of(value: Value) -> tuple[tuple[str, ...], frozenset[str], tuple[str, ...]]:
    kind: Any = type(value)
    return _shape(kind)


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _encode(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Value):
        return value.to_json()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return value


def _decode_fields(cls: type[Value], data: Mapping[str, Any] | str) -> dict[str, Any]:
    name = cls.__name__
    if isinstance(data, str):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError):
            raise InvalidRequestError("is not JSON; pass what to_json gave", path=name) from None
    if not isinstance(data, Mapping):
        raise InvalidRequestError("must be a JSON object", path=name)
    kind: Any = cls
    _, known, needed = _shape(kind)
    if extra := [key for key in data if key not in known]:
        raise InvalidRequestError(f"has {len(extra)} field(s) that {name} does not know; remove them", path=name)
    for key in needed:
        if key not in data:
            raise InvalidRequestError("is missing", path=f"{name}.{key}")
    decoders = cls._decoders
    return {k: decoders[k](v, k) if k in decoders and v is not None else v for k, v in data.items()}


def many(one: type[Value]) -> Callable[[Any, str], tuple[Any, ...]]:
    """A decoder of a list of values."""

    def decode(data: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple):
            raise InvalidRequestError("must be a list", path=path)
        return tuple(one.from_json(item) for item in data)

    return decode


def single(one: type[Value]) -> Callable[[Any, str], Any]:
    """A decoder of one value."""
    return lambda data, path: one.from_json(data)


def decode_instant(data: Any, path: str) -> datetime:
    """An instant from its ISO form.

    >>> decode_instant("2026-01-02T03:04:05+00:00", "at").year
    2026
    """
    try:
        return datetime.fromisoformat(data)
    except (TypeError, ValueError):
        raise InvalidRequestError("must be an ISO 8601 instant with an offset", path=path) from None


def decode_span(data: Any, path: str) -> timedelta:
    """A time span from its number of microseconds."""
    check_integer(data, path)
    try:
        return timedelta(microseconds=data)
    except OverflowError:
        raise InvalidRequestError("is longer than a timedelta can be", path=path) from None


def check_instant(value: object, path: str) -> datetime:
    """An aware datetime, as UTC.

    Raises:
        InvalidRequestError: For anything else; a naive datetime does not say which instant it means.
    """
    if not isinstance(value, datetime):
        raise InvalidRequestError(f"must be a datetime, not {type(value).__name__}", path=path)
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidRequestError("is a naive datetime; give it a timezone, such as datetime.now(UTC)", path=path)
    if value.tzinfo is UTC:
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidRequestError("lies outside the years 1 to 9999 in UTC", path=path) from None


def to_micros(instant: datetime) -> int:
    """Microseconds since 1970-01-01 UTC, exact.

    >>> to_micros(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000
    """
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant that lies so many microseconds after 1970-01-01 UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def _bounds(least: int | None, most: int | None) -> str:
    if most is None:
        return f"must be {least} or more"
    return f"must be {most} or less" if least is None else f"must lie between {least} and {most}"


def check_integer(value: object, path: str, *, least: int | None = None, most: int | None = None) -> int:
    """An ``int`` (a bool is none) within bounds, both inclusive.

    Raises:
        InvalidRequestError: For another type or outside the bounds.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError(f"must be an integer, not {type(value).__name__}", path=path)
    if (least is not None and value < least) or (most is not None and value > most):
        raise InvalidRequestError(_bounds(least, most), path=path)
    return int(value)


def check_importance(value: object, path: str = "importance") -> float | None:
    """None, or a number from 0 to 1.

    Raises:
        InvalidRequestError: For anything else, NaN too.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InvalidRequestError("must be None or a number from 0 to 1", path=path)
    return float(value)


def check_choice(value: object, choices: Iterable[str], path: str) -> str:
    """One of a few words.

    Raises:
        InvalidRequestError: For any other value; the message lists the words.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequestError(f"must be one of {', '.join(choices)}", path=path)
    return value


def check_values(items: object, of: type[T], path: str) -> tuple[T, ...]:
    """A list or tuple whose items are all of one type, as a tuple.

    Raises:
        InvalidRequestError: For anything else, with the index of the first wrong item.
    """
    if not isinstance(items, list | tuple):
        raise InvalidRequestError(f"must be a list or tuple of {of.__name__}", path=path)
    for index, item in enumerate(items):
        if not isinstance(item, of):
            raise InvalidRequestError(f"must be a {of.__name__}, not {type(item).__name__}", path=f"{path}[{index}]")
    return tuple(items)


def check_type(value: object, of: type[T], path: str) -> T:
    """A value of one type; None and look-alikes are refused.

    Raises:
        InvalidRequestError: For anything else.

    >>> check_type(True, bool, "replayed")
    True
    """
    if not isinstance(value, of):
        raise InvalidRequestError(f"must be a {of.__name__}, not {type(value).__name__}", path=path)
    return value


def check_optional_text(value: object, path: str) -> str | None:
    """None, or a sound string that is not blank."""
    return None if value is None else check_text(value, path)


def copy_json(value: Any, path: str, *, depth: int = _DEEPEST) -> Any:
    """A deep copy of a JSON value, checked.

    Args:
        value: None, bool, str, int of 64 bits, finite float, and lists and dicts of those.
        path: Where it stands.
        depth: How many levels of lists and dicts it may have, at most 200.

    Raises:
        InvalidRequestError: For anything that JSON cannot hold and give back the same, with the path of it.

    >>> copy_json({"a": [1, float("nan")]}, "metadata")
    Traceback (most recent call last):
    vmem_core.errors.InvalidRequestError: metadata.a[1]: is not a finite number, which JSON cannot hold
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return check_string(value, path)
    if isinstance(value, int):
        return _check_wide(int(value), path)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidRequestError("is not a finite number, which JSON cannot hold", path=path)
        return float(value)
    if isinstance(value, list | dict):
        if depth <= 0:
            raise InvalidRequestError("is nested too deep", path=path[:200])
        return _copy_nested(value, path, depth - 1)
    raise InvalidRequestError(f"is of type {type(value).__name__}, which JSON cannot hold as it is", path=path)


def check_depth(value: Any, path: str, depth: int) -> None:
    """Refuse a JSON value, checked before, that has more levels of lists and dicts than ``depth``.

    Raises:
        InvalidRequestError: With the path of the first that is too deep.
    """
    if not isinstance(value, list | dict):
        return
    if depth <= 0:
        raise InvalidRequestError("is nested too deep", path=path[:200])
    if isinstance(value, dict):
        named = ((f".{key[:64]}", item) for key, item in value.items() if isinstance(item, list | dict))
    else:
        named = ((f"[{index}]", item) for index, item in enumerate(value) if isinstance(item, list | dict))
    for name, item in named:
        check_depth(item, path + name, depth - 1)


def _check_wide(value: int, path: str) -> int:
    if not -(2**63) <= value < 2**63:
        raise InvalidRequestError("is an integer beyond 64 bits; store it as a string", path=path)
    return value


def _copy_nested(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, list):
        return [copy_json(item, f"{path}[{index}]", depth=depth) for index, item in enumerate(value)]
    copied = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidRequestError(f"has a key of type {type(key).__name__}; keys must be strings", path=path)
        # A faulty key cannot be named by itself; a long one would only fill the message.
        check_string(key, f"{path}.<key>")
        copied[str.__str__(key)] = copy_json(item, f"{path}.{key[:64]}", depth=depth)
    return copied
