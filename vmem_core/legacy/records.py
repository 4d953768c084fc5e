"""A record of another memory system, and what becomes of it. Pure.

Owns what a legacy record may say, how its times are read, and why one is skipped before any store is asked. Nothing
is refused that can be kept: a kind that nobody knows, an importance out of range and a time that cannot be read are
kept as they stand under ``metadata.legacy_import``. Does not own reading a source (the other files of this folder) or
what a store makes of a batch (``vmem_core/imports.py``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, cast

from vmem_core.errors import InvalidRequestError
from vmem_core.imports import Import
from vmem_core.limits import Limits
from vmem_core.records import KINDS, Kind, Origin, Scope, check_metadata
from vmem_core.text import is_blank, mend_string, text_digest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A number is a time in seconds, or in a unit a thousand times smaller for every three digits more: each of these
# bounds is the year 5138 in its own unit and 1973 in the next, so that no plausible time has two readings.
_UNITS: Final = ((10**11, 1_000_000), (10**14, 1_000), (10**17, 1))
_LONGEST_NOTED: Final = 200
_INFORMATIVE: Final = ("created_at", "updated_at", "last_accessed_at", "valid_at")
_DECISIVE: Final = ("expires_at", "invalid_at")
_SCOPE_FIELDS: Final = tuple(field.name for field in fields(Scope))
Skip = str


@dataclass(slots=True, repr=False)
class LegacyRecord:
    """A record as another system has it. Nothing is checked here: the import judges it, and counts what it skips.

    Args:
        id: Its id there; an integer becomes a string.
        text: What it says.
        scope: A ``Scope``, a mapping with the fields of one, or None.
        kind: One of our kinds; another word is kept in the metadata.
        importance: 0 to 1.
        metadata: A JSON object.
        created_at: A time: an aware ``datetime``, an ISO 8601 text, or a number of seconds, milli-, micro- or
            nanoseconds since 1970, told apart by size. One without an offset is taken as UTC.
        updated_at: A time.
        last_accessed_at: A time.
        valid_at: A time.
        expires_at: A time; a date alone is the day's beginning.
        invalid_at: A time: when the other system learned that it is wrong.
        fault: Why the reader could not make sense of it, as the reason it is skipped for.

    >>> LegacyRecord("m-1", "Ada prefers tea.", {"user_id": "ada"}).id
    'm-1'
    """

    id: Any = None
    text: Any = None
    scope: Any = None
    kind: Any = None
    importance: Any = None
    metadata: Any = None
    created_at: Any = None
    updated_at: Any = None
    last_accessed_at: Any = None
    valid_at: Any = None
    expires_at: Any = None
    invalid_at: Any = None
    fault: str | None = None


def made_id(record: LegacyRecord) -> str:
    """An id for a record without one: the same for the same scope and text."""
    scope = record.scope.to_json() if isinstance(record.scope, Scope) else record.scope
    said = json.dumps([scope, record.text], sort_keys=True, default=str)
    return "made-" + text_digest(said).partition(":")[2][:32]


class _Skipped(Exception):
    """A record is not to be imported; the argument is the reason."""


def read_time(value: Any) -> datetime | None:
    """A legacy time in UTC; None for None.

    Raises:
        ValueError: If it cannot be read as one.

    >>> read_time(1_700_000_000) == read_time(1_700_000_000_000) == read_time("2023-11-14T22:13:20Z")
    True
    """
    if value is None:
        return None
    try:
        return _read_time(value)
    except (OverflowError, TypeError, ValueError):
        raise ValueError("is no time that can be read") from None


def _read_time(value: Any) -> datetime:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, str):
        text = value.strip()
        if not text.isascii():
            raise ValueError
        value = float(text) if text.replace(".", "", 1).lstrip("-").isdigit() and not _is_date(text) else text
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    for bound, micros in _UNITS:
        if abs(value) < bound:
            return _EPOCH + timedelta(microseconds=round(value * micros))
    return _EPOCH + timedelta(microseconds=int(value) // 1_000)


def _is_date(text: str) -> bool:
    """Whether digits alone are a date, as ISO 8601 allows: ``20260301``."""
    return len(text) == 8 and text.isdigit() and text[:2] in ("19", "20")


def judge(
    record: LegacyRecord, scope: Scope | None, prefix: str, origin: Origin, limits: Limits, salt: bytes
) -> Import | Skip:
    """The operation that imports a record, or the reason why it is skipped.

    Args:
        record: As its reader gave it.
        scope: Only records that agree with it, and whose memory those without a scope are; None: all.
        prefix: Before the legacy id, in the operation id.
        origin: Of the new record.
        limits: The largest values that are taken.
        salt: 16 random bytes.
    """
    try:
        if record.fault is not None:
            return record.fault
        record_id = _id_of(record, prefix, limits)
        whose = _scope_of(record.scope, scope, limits)
        return _operation(record, record_id, whose, prefix, origin, limits, salt)
    except _Skipped as skipped:
        return str(skipped)


def _id_of(record: LegacyRecord, prefix: str, limits: Limits) -> str:
    given = record.id
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if given is None or (isinstance(given, str) and is_blank(given)):
        raise _Skipped("no_id")
    # An id is never mended: two that differ could become one.
    if not isinstance(given, str) or mend_string(given) != given or len(prefix) + 1 + len(given) > limits.id_chars:
        raise _Skipped("invalid_id")
    return str.__str__(given)


def _scope_of(given: Any, asked: Scope | None, limits: Limits) -> Scope:
    own = given if isinstance(given, Scope) else _read_scope(given, limits)
    if own is None:
        if asked is None:
            raise _Skipped("no_scope")
        return asked
    if asked is not None and not agrees(own, asked):
        raise _Skipped("other_scope")
    return own


def _read_scope(given: Any, limits: Limits) -> Scope | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise _Skipped("invalid_scope")
    found = {name: value for name in _SCOPE_FIELDS if (value := given.get(name)) is not None and value != ""}
    if not found:
        return None
    try:
        scope = Scope(**{name: str(value) if type(value) is int else value for name, value in found.items()})
        limits.check_scope(scope)
    except InvalidRequestError:
        raise _Skipped("invalid_scope") from None
    return scope


def agrees(scope: Scope, asked: Scope) -> bool:
    """Whether a scope has every field that is asked for, as the legacy stores matched.

    >>> agrees(Scope(user_id="ada", chat_id="c1"), Scope(user_id="ada"))
    True
    """
    wanted = ((name, getattr(asked, name)) for name in _SCOPE_FIELDS)
    return all(value is None or getattr(scope, name) == value for name, value in wanted)


def _operation(
    record: LegacyRecord, record_id: str, scope: Scope, prefix: str, origin: Origin, limits: Limits, salt: bytes
) -> Import:
    text = _text_of(record.text, limits)
    noted: dict[str, Any] = {}
    _note_times(record, noted, _INFORMATIVE)
    expires_at, invalid_at = _note_times(record, noted, _DECISIVE)
    if record.kind is not None and record.kind not in KINDS:
        noted["kind"] = _plain(record.kind)
    importance = _importance_of(record.importance)
    if importance is None and record.importance is not None:
        noted["importance"] = _plain(record.importance)
    metadata = _metadata_of(record.metadata, noted, limits)
    said = metadata
    if record.last_accessed_at is not None:  # that somebody looked at it there does not make it another record
        said = {**metadata, "legacy_import": {k: v for k, v in noted.items() if k != "last_accessed_at"}}
    return Import(
        scope=scope,
        operation_id=f"{prefix}:{record_id}",
        salt=salt,
        record_id=record_id,
        text=text,
        origin=origin,
        kind=cast(Kind, record.kind if record.kind in KINDS else "semantic"),
        importance=importance,
        metadata=metadata,
        said=(said,) if said else (),
        expires_at=expires_at,
        invalid_at=invalid_at,
    )


def _text_of(text: Any, limits: Limits) -> str:
    if text is None:
        raise _Skipped("blank")
    if not isinstance(text, str):
        raise _Skipped("unreadable")
    mended = mend_string(text)
    if is_blank(mended):
        raise _Skipped("blank")
    if len(mended) > limits.text_chars:
        raise _Skipped("too_long")
    return str.__str__(mended)


def _importance_of(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= 1 else None


def _note_times(record: LegacyRecord, noted: dict[str, Any], names: Sequence[str]) -> list[datetime | None]:
    """The times of some fields; what there is of them is noted, as it was read or else as it stands."""
    found: list[datetime | None] = []
    for name in names:
        given, time_ = getattr(record, name), None
        if given is not None:
            try:
                time_ = read_time(given)
            except ValueError:
                if name in _DECISIVE:  # it may be over already: nobody can tell
                    raise _Skipped("unreadable_time") from None
            noted[name] = _plain(given) if time_ is None else time_.isoformat()
        found.append(time_)
    return found


def _plain(given: Any) -> Any:
    """What stood in a field, as far as JSON can hold it; a text that is no time may be long."""
    if isinstance(given, str):
        return mend_string(given[:_LONGEST_NOTED])
    if isinstance(given, float) and not math.isfinite(given):
        return str(given)
    if isinstance(given, int) and not -(2**63) <= given < 2**63:
        return str(given)
    return given if isinstance(given, int | float) else type(given).__name__


def _metadata_of(given: Any, noted: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    if not given and (given is None or isinstance(given, Mapping)):
        return {"legacy_import": dict(noted)} if noted else {}  # what is noted is short and sound
    if not isinstance(given, Mapping):
        raise _Skipped("invalid_metadata")
    own = dict(given)
    if noted or "legacy_import" in own:
        # Of a record that was imported before, by another store: what that one noted goes along.
        earlier = {"legacy_import": own["legacy_import"]} if "legacy_import" in own else {}
        own["legacy_import"] = {**noted, **earlier}
    try:
        checked = _checked(own)
        limits.check_metadata(checked)
    except (InvalidRequestError, RecursionError):
        raise _Skipped("invalid_metadata") from None
    return checked


def _checked(metadata: dict[str, Any]) -> dict[str, Any]:
    """A copy; only if it cannot be taken as it is, with its strings mended."""
    try:
        return check_metadata(metadata)
    except InvalidRequestError:
        return check_metadata(_mended(metadata))


def _mended(value: Any) -> Any:
    """JSON with every string mended, keys too."""
    if isinstance(value, str):
        return mend_string(value)
    if isinstance(value, Mapping):
        return {mend_string(key) if isinstance(key, str) else key: _mended(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_mended(item) for item in value]
    return value
