"""A scope's whole history as lines of JSON: what an export holds, and how it is read again. Pure.

Owns the format, its version, and what is refused of a file. A file has a header, then every record in order of
creation (a forgotten one as its tombstone), every revision in the order they were committed, every receipt with the
salted digest of its request, every id of a message that was read, and an end line with a digest of all before it. The
same scope gives the same bytes whatever store it is in. Vectors and search tokens are left out: both can be made again.
Does not own how a store reads or writes its rows.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from vmem_core.errors import InvalidRequestError, UnsupportedError
from vmem_core.plan import StoredReceipt, StoredRequest
from vmem_core.records import Record, Scope
from vmem_core.results import Receipt
from vmem_core.text import check_text, json_encoder
from vmem_core.values import check_integer, from_micros

FORMAT: Final = "vmem-export"
VERSION: Final = 1
_SALT_BYTES: Final = 16
_FIRST: Final = 1
_COMPLETE: Final = 0
_ORDER: Final = ("record", "revision", "receipt", "message", "end")


@dataclass(slots=True, repr=False)
class Header:
    """The first line.

    Args:
        scope: Whose memory it is.
        scope_revision: Its revision.
        last_stamp: Its last stamp, in microseconds since 1970.
        records: How many records follow, forgotten ones too.
        revisions: How many revisions follow.
        receipts: How many receipts follow.
        messages: How many ids of messages follow.
    """

    scope: Scope
    scope_revision: int
    last_stamp: int
    records: int
    revisions: int
    receipts: int
    messages: int


@dataclass(slots=True, repr=False)
class RecordPart:
    """That a record was made, or, with the scope revision of the forget, that it was forgotten."""

    record_id: str
    forgotten_at: int | None = None


@dataclass(slots=True, repr=False)
class RevisionPart:
    """One revision of a record that is not forgotten.

    Args:
        place: The record's place among the records of the file, from 0.
        revision: Its number.
        scope_revision: The scope's revision that wrote it.
        recorded_at: Microseconds since 1970.
        current: Whether it is the record's current one.
        record: What it says; None: it was pruned.
    """

    place: int
    revision: int
    scope_revision: int
    recorded_at: int
    current: bool
    record: Record | None


@dataclass(slots=True, repr=False)
class ReceiptPart:
    """A committed operation, and the places of the records that it met without writing them."""

    stored: StoredReceipt
    mentions: tuple[int, ...] = ()


@dataclass(slots=True, repr=False)
class MessagePart:
    """A message that an extraction has read."""

    message_id: str


Part = RecordPart | RevisionPart | ReceiptPart | MessagePart


# --- writing ------------------------------------------------------------------------------------------------------


class Writer:
    """Turns a header and parts into lines, each with its line break."""

    def __init__(self) -> None:
        self._digest, self._lines = hashlib.sha256(), 0

    def header(self, header: Header) -> str:
        """The first line."""
        data = {name: getattr(header, name) for name in _HEADER_FIELDS}
        return self._line({"format": FORMAT, "version": VERSION, "scope": _trim(header.scope.to_json()), **data})

    def part(self, part: Part) -> str:
        """The line of a part."""
        return self._line(_PART_WRITERS[type(part)](part))

    def end(self) -> str:
        """The last line."""
        return _encode({"end": self._lines, "sha256": self._digest.hexdigest()}) + "\n"

    def _line(self, data: Mapping[str, Any]) -> str:
        line = _encode(data)
        line = (line if line.isascii() else line.translate(_LINE_BREAKS)) + "\n"
        self._digest.update(line.encode("utf-8"))
        self._lines += 1
        return line


_HEADER_FIELDS: Final = ("scope_revision", "last_stamp", "records", "revisions", "receipts", "messages")
# JSON leaves these as they are, and some programs take them for the end of a line.
_LINE_BREAKS: Final = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
_encode: Final = json_encoder()


def _trim(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


def _write_record(part: RecordPart) -> dict[str, Any]:
    forgotten = {} if part.forgotten_at is None else {"forgotten_at": part.forgotten_at}
    return {"record": part.record_id, **forgotten}


def _write_revision(part: RevisionPart) -> dict[str, Any]:
    data = {
        "revision": part.revision,
        "of": part.place,
        "scope_revision": part.scope_revision,
        "recorded_at": part.recorded_at,
        "current": part.current,
    }
    if part.record is None:
        return data
    said = part.record.to_json()
    for name in _ELSEWHERE:  # in the same line already, or in the header
        del said[name]
    return {**data, "content": said}


_ELSEWHERE: Final = ("revision", "scope", "scope_revision", "recorded_at")


def _write_receipt(part: ReceiptPart) -> dict[str, Any]:
    receipt, request = part.stored.receipt, part.stored.request
    data = receipt.to_json()
    del data["scope"]
    digest = None if receipt.redacted else (request.salt + request.digest).hex()
    mentions = {"mentions": list(part.mentions)} if part.mentions else {}
    return {"receipt": data, "request": digest, **mentions}


def _write_message(part: MessagePart) -> dict[str, Any]:
    return {"message": part.message_id}


_PART_WRITERS: Final[Mapping[type, Any]] = {
    RecordPart: _write_record,
    RevisionPart: _write_revision,
    ReceiptPart: _write_receipt,
    MessagePart: _write_message,
}


# --- reading ------------------------------------------------------------------------------------------------------


def _refuse(line: int, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what}; nothing was imported: export the scope again", path=f"lines[{line}]")


def not_empty(scope_revision: int) -> InvalidRequestError:
    """What is said when an export is to go into a scope that is written already."""
    return InvalidRequestError(
        f"is at revision {scope_revision}, and an export goes only into a scope that was never written",
        path="scope",
    )


@dataclass(slots=True, repr=False)
class Reader:
    """Reads an export line by line, in one pass, and refuses whatever is not as a writer wrote it.

    Nothing of a file may be kept until :meth:`finish` has seen its end: only then is it known to be whole.
    """

    header: Header | None = None
    _digest: Any = field(default_factory=hashlib.sha256)
    _lines: int = 0
    _stage: int = 0
    _ended: bool = False
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ORDER[:4], 0))
    # Of each record the revision that must come next, 8 bytes; _COMPLETE: none may.
    _next: array[int] = field(default_factory=lambda: array("q"))
    _met: set[str] = field(default_factory=set)  # the ids of the records, then of the operations
    _last_receipt: int = 0
    _last_message: str = ""

    def read(self, line: str) -> Part | None:
        """The part that a line holds; None for the first and the last one.

        Raises:
            InvalidRequestError: With the number of the line, from 0.
            UnsupportedError: For a file of a newer version.
        """
        data = self._decode(line)
        if self.header is None:
            self.header = self._read_header(data)
            self._seen(line)
            return None
        kind = next((kind for kind in _ORDER if kind in data), None)
        if kind is None or _ORDER.index(kind) < self._stage:
            raise _refuse(self._lines, "is no line of an export, or stands in the wrong place")
        if _ORDER.index(kind) > self._stage:
            self._stage = _ORDER.index(kind)
            self._met.clear()
        if kind == "end":
            self._read_end(data)
            return None
        try:
            part: Part = _PART_READERS[kind](data, self.header)
            self._follow(part)
        except (InvalidRequestError, LookupError, TypeError, ValueError):
            raise _refuse(self._lines, f"holds a {kind} that is not as it was written") from None
        self._meet(kind, part)
        self._counts[kind] += 1
        self._seen(line)
        return part

    def _follow(self, part: Part) -> None:
        """Refuse what does not follow on the part before it: its record's revision, or the part itself."""
        if isinstance(part, RecordPart):
            self._next.append(_FIRST if part.forgotten_at is None else _COMPLETE)
        elif isinstance(part, RevisionPart):
            if part.revision != self._next[part.place]:
                raise ValueError
            self._next[part.place] = _COMPLETE if part.current else part.revision + 1
        elif isinstance(part, ReceiptPart):
            written, mentions = part.stored.receipt.scope_revision, part.mentions
            if written <= self._last_receipt or any(one >= other for one, other in pairwise(mentions)):
                raise ValueError
            self._last_receipt = written
        elif part.message_id <= self._last_message:
            raise ValueError
        else:
            self._last_message = part.message_id

    def _meet(self, kind: str, part: Part) -> None:
        """Refuse an id that an earlier line of the same kind holds: each store would make something else of it."""
        if isinstance(part, RecordPart | ReceiptPart):
            met = part.record_id if isinstance(part, RecordPart) else part.stored.receipt.operation_id
            if met in self._met:
                raise _refuse(self._lines, f"holds the id of a {kind} that an earlier line holds")
            self._met.add(met)

    def finish(self) -> Header:
        """The header, once the last line was read.

        Raises:
            InvalidRequestError: If there is none: the file was cut off.
        """
        if self.header is None or not self._ended:
            raise _refuse(self._lines, "is missing: the export was cut off before its end")
        return self.header

    def _decode(self, line: str) -> dict[str, Any]:
        if self._ended:
            raise _refuse(self._lines, "follows after the end of the export")
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            raise _refuse(self._lines, "is not JSON") from None
        if not isinstance(data, dict):
            raise _refuse(self._lines, "is not a JSON object")
        return data

    def _seen(self, line: str) -> None:
        self._digest.update((line.rstrip("\r\n") + "\n").encode("utf-8", "surrogatepass"))
        self._lines += 1

    def _read_header(self, data: Mapping[str, Any]) -> Header:
        if data.get("format") != FORMAT:
            raise _refuse(0, "is not the first line of an export of this library")
        if type(data.get("version")) is int and data["version"] > VERSION:
            raise UnsupportedError(
                f"the export is of version {data['version']}, this library reads up to {VERSION}; upgrade it"
            )
        try:
            counts = [check_integer(data[name], name, least=0) for name in _HEADER_FIELDS]
            return Header(Scope.from_json(data["scope"]), *counts)
        except (InvalidRequestError, KeyError):
            raise _refuse(0, "is not a header as it was written") from None

    def _read_end(self, data: Mapping[str, Any]) -> None:
        header = self.header
        assert header is not None
        counted = {kind: getattr(header, f"{kind}s") for kind in self._counts}
        if (data["end"], data.get("sha256"), counted) != (self._lines, self._digest.hexdigest(), self._counts):
            raise _refuse(self._lines, "does not fit the lines before it: the export was changed or is incomplete")
        if any(revision != _COMPLETE for revision in self._next):
            raise _refuse(self._lines, "comes before a record's current revision")
        self._ended = True


def _read_record(data: Mapping[str, Any], header: Header) -> RecordPart:
    forgotten = data.get("forgotten_at")
    if forgotten is not None:
        check_integer(forgotten, "forgotten_at", least=1, most=header.scope_revision)
    return RecordPart(check_text(data["record"], "record"), forgotten)


def _read_revision(data: Mapping[str, Any], header: Header) -> RevisionPart:
    revision = check_integer(data["revision"], "revision", least=1)
    place = check_integer(data["of"], "of", least=0, most=header.records - 1)
    written = check_integer(data["scope_revision"], "scope_revision", least=1, most=header.scope_revision)
    stamp = check_integer(data["recorded_at"], "recorded_at", most=header.last_stamp)
    record, current = None, data["current"] is True
    if "content" in data:
        shared = {"revision": revision, "scope": header.scope.to_json(), "scope_revision": written}
        record = Record.from_json({**data["content"], **shared, "recorded_at": from_micros(stamp).isoformat()})
    if current and record is None:
        raise ValueError
    return RevisionPart(place, revision, written, stamp, current, record)


def _read_receipt(data: Mapping[str, Any], header: Header) -> ReceiptPart:
    receipt = Receipt.from_json({**data["receipt"], "scope": header.scope.to_json()})
    check_integer(receipt.scope_revision, "scope_revision", most=header.scope_revision)
    request = b"" if data["request"] is None else bytes.fromhex(data["request"])
    if (len(request) != _SALT_BYTES + 32) != receipt.redacted:
        raise ValueError
    mentions: Sequence[Any] = data.get("mentions", ())
    places = tuple(check_integer(place, "mentions", least=0, most=header.records - 1) for place in mentions)
    return ReceiptPart(StoredReceipt(receipt, StoredRequest(request[:_SALT_BYTES], request[_SALT_BYTES:])), places)


def _read_message(data: Mapping[str, Any], header: Header) -> MessagePart:
    return MessagePart(check_text(data["message"], "message"))


_PART_READERS: Final[Mapping[str, Any]] = {
    "record": _read_record,
    "revision": _read_revision,
    "receipt": _read_receipt,
    "message": _read_message,
}
