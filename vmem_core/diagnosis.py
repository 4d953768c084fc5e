"""Whether what a store keeps agrees with itself. Pure.

Owns every rule of the doctor, once for all stores: scopes, receipts, heads, index columns, forgotten records,
vectors, rows that belong to nothing. A store delivers plain facts (``Facts``) in order, a block at a time, so that
memory stays flat; it holds no rule. Does not own how facts are read (``stores/``) or shown (``cli``).

A finding names ids and numbers, never what is remembered. Pruning may have taken the oldest receipts of a scope and
the oldest revisions of a record: what is missing there is no fault.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

from vmem_core.indexing import FORGOTTEN, KIND_CODES, ORIGIN_CODES, expiry_micros, state_code, token_bytes
from vmem_core.records import Record, Scope
from vmem_core.results import Finding
from vmem_core.text import text_key
from vmem_core.tokens import facets

_LONGEST_STRAY: Final = 1e-3  # how far the length of a unit vector may be from 1
_BYTES_A_NUMBER: Final = 4

Content = Literal["kept", "erased", "unreadable"]


@dataclass(slots=True, repr=False)
class ScopeFacts:
    """A scope's row: who it is (None if that cannot be read), its revision, last stamp, and count of records."""

    number: int
    scope: Scope | None
    revision: int
    last_stamp: int
    records: int


@dataclass(slots=True, repr=False)
class ChangeFacts:
    """One change that a receipt names, beside what the store has of it.

    Args:
        record_id: The record it names.
        revision: The revision it names.
        action: What was done.
        head: The record's current revision; None if this scope has no such record.
        forgotten: Whether that record is forgotten.
        written: Scope revision and stamp of the revision it names; None if there is no such row.
    """

    record_id: str
    revision: int
    action: str
    head: int | None
    forgotten: bool
    written: tuple[int, int] | None


@dataclass(slots=True, repr=False)
class ReceiptFacts:
    """A receipt: its place in the scope, its stamp, whether it is redacted, whether its request's digest is gone.

    ``changes`` is None if its body cannot be read.
    """

    scope_revision: int
    operation_id: str
    committed_at: int
    redacted: bool
    erased: bool
    changes: Sequence[ChangeFacts] | None


@dataclass(slots=True, repr=False)
class RevisionFacts:
    """One revision's row.

    Args:
        revision: From 1.
        entry: The store's running number of the row.
        scope_revision: Of the operation that wrote it.
        recorded_at: Its stamp, in microseconds since 1970.
        content: Whether its body is kept and readable, erased, or neither.
        text: A hash of its text, equal for equal texts; None unless kept.
        listed: Whether the receipt of its scope revision names it; None if that receipt is not kept.
    """

    revision: int
    entry: int
    scope_revision: int
    recorded_at: int
    content: Content
    text: int | None
    listed: bool | None


@dataclass(slots=True, repr=False)
class VectorFacts:
    """A vector of a record.

    Args:
        generation: Of the model that made it.
        since: The first revision that it is of.
        revision: The last one.
        past: Whether it was set aside because the text has changed since.
        numbers: How many float32 it holds; not whole if its bytes do not fit.
        length: Its Euclidean length; NaN if it cannot be told.
    """

    generation: int
    since: int
    revision: int
    past: bool
    numbers: float
    length: float

    @classmethod
    def of(cls, generation: int, since: int, revision: int, vector: bytes, *, past: bool) -> VectorFacts:
        """The facts of a stored vector: its bytes need not be kept."""
        numbers = len(vector) / _BYTES_A_NUMBER
        length = math.nan
        if numbers.is_integer():
            length = float(np.linalg.norm(np.frombuffer(vector, dtype="<f4").astype(np.float64)))
        return cls(generation, since, revision, past, numbers, length)


@dataclass(slots=True, repr=False)
class Columns:
    """What a record's row keeps for the index, besides its content."""

    state: int
    kind: int
    origin: int
    expires_at: int | None
    text_key: int | None
    tokens: bytes
    facets: bytes


@dataclass(slots=True, repr=False)
class RecordFacts:
    """A record's row with all that belongs to it.

    Args:
        number: Its place in the scope.
        record_id: Its id.
        revision: The current revision by its row.
        entry: The entry of that revision by its row.
        changed: The scope revision of the last change by its row.
        columns: What the index is built from.
        current: The current revision's content; None if there is none that can be read.
        revisions: All rows of revisions, ascending.
        vectors: Its vectors in every generation that has tables.
        mentions: The lowest and the highest scope revision of receipts that met it without writing it, if any.
        marks: Generation and revision of each mark that a model has no vector for the text.
        forget_listed: Whether the receipt at ``changed`` says that it was forgotten; None if that is not kept.
    """

    number: int
    record_id: str
    revision: int
    entry: int
    changed: int
    columns: Columns
    current: Record | None
    revisions: Sequence[RevisionFacts]
    vectors: Sequence[VectorFacts] = ()
    mentions: Sequence[int] = ()
    marks: Sequence[tuple[int, int]] = ()
    forget_listed: bool | None = None


@dataclass(slots=True, repr=False)
class GenerationFacts:
    """A generation's row, and whether its tables are there: of current vectors, of past ones."""

    number: int
    dims: int
    state: str
    tables: tuple[bool, bool]


@dataclass(slots=True, repr=False)
class Stray:
    """Rows of one table that belong to nothing."""

    table: str
    owner: str
    rows: int


class Facts(Protocol):
    """What a store tells of itself, from one snapshot. What is asked for is used up before anything else is."""

    @property
    def language(self) -> str | None:
        """Of the search tokens; None if they are an older tokenizer's."""
        ...

    def generations(self) -> Sequence[GenerationFacts]:
        """Every generation, and one of state ``unknown`` for tables without a row."""
        ...

    def scopes(self) -> Iterable[ScopeFacts]:
        """Every scope."""
        ...

    def records(self, scope: ScopeFacts) -> Iterable[RecordFacts]:
        """The scope's records, by number."""
        ...

    def receipts(self, scope: ScopeFacts) -> Iterable[ReceiptFacts]:
        """The scope's receipts, by scope revision."""
        ...

    def strays(self) -> Iterable[Stray]:
        """Rows that belong to no scope or record."""
        ...


def diagnose(facts: Facts) -> Iterator[Finding]:
    """What does not agree, in the order of the scopes.

    Args:
        facts: From one snapshot of a store.
    """
    if facts.language is None:
        yield Finding("tokenizer_old", detail="the search tokens are an older tokenizer's; opening the store mends it")
    generations = facts.generations()
    yield from _check_generations(generations)
    known = {one.number: one for one in generations if one.state in ("active", "pending")}
    for scope in facts.scopes():
        if scope.scope is None:
            yield Finding("scope_unreadable", detail=f"the key of scope {scope.number} is not one")
            continue
        check = _ScopeCheck(scope, scope.scope, known, facts.language)
        yield from check.records(facts.records(scope))
        yield from check.receipts(facts.receipts(scope))
        yield from check.revision()
    for stray in facts.strays():
        yield Finding("orphan_rows", detail=f"{stray.rows} in {stray.table} without {stray.owner}")


def _check_generations(generations: Sequence[GenerationFacts]) -> Iterator[Finding]:
    for state in ("active", "pending"):
        count = sum(one.state == state for one in generations)
        if count > 1:
            yield Finding("generation_states", detail=f"{count} generations are {state}")
    for one in generations:
        if one.state not in ("active", "pending", "retired", "unknown"):
            yield Finding("generation_states", detail=f"generation {one.number} is of no known state")
        wanted = one.state in ("active", "pending")
        if one.tables != (wanted, wanted):
            fault = "lacks a table of its vectors" if wanted else "should have no tables of vectors"
            yield Finding("generation_tables", detail=f"generation {one.number}, {one.state}, {fault}")


@dataclass(slots=True)
class _ScopeCheck:
    """The rules of one scope."""

    row: ScopeFacts
    scope: Scope
    generations: Mapping[int, GenerationFacts]
    language: str | None
    highest: int = 0  # scope revision met
    last_stamp: int = 0  # stamp met

    def found(self, code: str, detail: str, record_id: str | None = None, operation_id: str | None = None) -> Finding:
        """A finding of this scope. An id that is not a sound string is left out."""
        return Finding(code, self.scope, record_id or None, operation_id or None, detail)

    # --- the scope's row ----------------------------------------------------------------------------------------

    def meet(self, scope_revision: int, stamp: int) -> None:
        """Note what the scope's row must not be behind of."""
        self.highest = max(self.highest, scope_revision)
        self.last_stamp = max(self.last_stamp, stamp)

    def revision(self) -> Iterator[Finding]:
        """The scope's row, once everything in the scope was met."""
        if self.highest > self.row.revision:
            yield self.found("scope_behind", f"at revision {self.row.revision}, but {self.highest} was written")
        if self.last_stamp > self.row.last_stamp:
            yield self.found("stamp_behind", "something was stamped later than the scope's last stamp")

    # --- receipts -----------------------------------------------------------------------------------------------

    def receipts(self, receipts: Iterable[ReceiptFacts]) -> Iterator[Finding]:
        """A run without gaps up to the scope's revision; what each says is there."""
        before, stamp = None, 0
        for receipt in receipts:
            self.meet(receipt.scope_revision, receipt.committed_at)
            if before is not None and receipt.scope_revision != before + 1:
                yield self._missing(before + 1, receipt.scope_revision - 1)
            if receipt.committed_at < stamp:
                detail = f"scope revision {receipt.scope_revision} is stamped earlier than one before it"
                yield self.found("stamps_fall", detail, operation_id=receipt.operation_id)
            before, stamp = receipt.scope_revision, max(stamp, receipt.committed_at)
            yield from self._receipt(receipt)
        if before is not None and before < self.row.revision:
            yield self._missing(before + 1, self.row.revision)

    def _missing(self, first: int, last: int) -> Finding:
        which = f"revision {first}" if first == last else f"revisions {first} to {last}"
        return self.found("receipt_missing", f"no receipt of scope {which}, though older ones are kept")

    def _receipt(self, receipt: ReceiptFacts) -> Iterator[Finding]:
        operation = receipt.operation_id
        if receipt.redacted != receipt.erased:
            fault = "redacted, but its request's digest is kept" if receipt.redacted else "lacks its request's digest"
            yield self.found("receipt_digest", fault, operation_id=operation)
        if receipt.changes is None:
            yield self.found("receipt_unreadable", f"of scope revision {receipt.scope_revision}", None, operation)
        for change in receipt.changes or ():
            wrong = _change_fault(change, receipt)
            if wrong is not None:
                yield self.found(wrong[0], wrong[1], change.record_id, operation)

    # --- records ------------------------------------------------------------------------------------------------

    def records(self, records: Iterable[RecordFacts]) -> Iterator[Finding]:
        """Numbers without gaps, and each record by itself."""
        expected = 0
        for record in records:
            if record.number > expected:
                yield from self._lost(expected, min(record.number, self.row.records))
            if record.number >= self.row.records:
                detail = f"has number {record.number}, the scope counts {self.row.records} records"
                yield self.found("record_beyond", detail, record.record_id)
            expected = record.number + 1
            for revision in record.revisions:
                self.meet(revision.scope_revision, revision.recorded_at)
            forgotten = record.columns.state == FORGOTTEN
            for code, detail in self._forgotten(record) if forgotten else self._living(record):
                yield self.found(code, detail, record.record_id)
        yield from self._lost(expected, self.row.records)

    def _lost(self, first: int, end: int) -> Iterator[Finding]:
        if first < end:
            which = f"number {first}" if first == end - 1 else f"numbers {first} to {end - 1}"
            yield self.found("record_lost", f"no record has {which}; rows are never deleted")

    def _forgotten(self, record: RecordFacts) -> Iterator[tuple[str, str]]:
        kept = [row.revision for row in record.revisions if row.content != "erased"]
        if kept:
            yield "forgotten_text", f"forgotten, but the content of {_named(kept)} is kept"
        if record.vectors or record.marks:
            count = len(record.vectors) + len(record.marks)
            yield "forgotten_vector", f"forgotten, but {count} of its vectors, or marks in their place, are kept"
        columns = record.columns
        if columns.tokens or columns.facets or columns.text_key is not None or record.entry or record.revision:
            yield "forgotten_index", "forgotten, but its row keeps what search or reads would follow"
        if record.mentions:
            yield "forgotten_mention", "forgotten, but receipts still count as having met it"
        if record.forget_listed is False or not 1 <= record.changed <= self.row.revision:
            yield "head_changed", f"forgotten at scope revision {record.changed} by its row, by no receipt"

    def _living(self, record: RecordFacts) -> Iterator[tuple[str, str]]:
        yield from self._head(record)
        yield from _check_revisions(record)
        yield from self._columns(record)
        for vector in record.vectors:
            generation = self.generations.get(vector.generation)  # one that is retired is told of as a whole
            fault = None if generation is None else _vector_fault(vector, record, generation)
            if fault is not None:
                yield fault
        for generation_number, revision in record.marks:
            if not 1 <= revision <= record.revision:
                yield "vector_revision", f"in generation {generation_number}, a mark of revision {revision}"
        if any(not 1 <= mention <= self.row.revision for mention in record.mentions):
            yield "mention_unknown", "a receipt that the scope has not reached counts as having met it"

    def _head(self, record: RecordFacts) -> Iterator[tuple[str, str]]:
        head = next((row for row in record.revisions if row.revision == record.revision), None)
        if head is None:
            yield "head_missing", f"its current revision {record.revision} has no row"
            return
        if head.entry != record.entry:
            yield "head_entry", f"its row points to another entry than that of revision {record.revision}"
        if head.content == "erased":
            yield "head_erased", f"the content of its current revision {record.revision} is gone"
        if record.changed != head.scope_revision:
            yield "head_changed", f"changed at {record.changed} by its row, at {head.scope_revision} by its revision"

    def _columns(self, record: RecordFacts) -> Iterator[tuple[str, str]]:
        current = record.current
        if current is None:
            return
        wanted = Columns(
            state_code(current),
            KIND_CODES[current.kind],
            ORIGIN_CODES[current.origin],
            expiry_micros(current),
            text_key(current.text),
            record.columns.tokens if self.language is None else token_bytes(current.text, self.language),
            facets(current.metadata),
        )
        wrong = [name for name in Columns.__slots__ if getattr(wanted, name) != getattr(record.columns, name)]
        if wrong:
            yield "index_columns", f"{', '.join(wrong)} differ from what revision {current.revision} says"


def _change_fault(change: ChangeFacts, receipt: ReceiptFacts) -> tuple[str, str] | None:
    """The code and words of what is wrong with a change, or None."""
    named = f"revision {change.revision}"
    if change.head is None:
        return "change_unknown", f"the receipt names {named} of a record that the scope does not have"
    if change.action == "forget":
        return None if change.forgotten else ("forget_undone", "the receipt says forgotten, but the record is there")
    if change.forgotten:
        return None if receipt.redacted else ("receipt_not_redacted", "the receipt wrote a record forgotten since")
    if change.revision > change.head:
        return "change_ahead", f"the receipt names {named}, the record is at {change.head}"
    if change.written is None:
        # Pruning erases content; the row of a living record stays.
        return "change_lost", f"the receipt names {named}, which has no row"
    if change.written[0] != receipt.scope_revision:
        return "change_mismatch", f"the receipt names {named}, which scope revision {change.written[0]} wrote"
    if change.written[1] != receipt.committed_at:
        return "change_mismatch", f"{named} is stamped otherwise than its receipt"
    return None


def _check_revisions(record: RecordFacts) -> Iterator[tuple[str, str]]:
    rows = record.revisions
    above = [row.revision for row in rows if row.revision > record.revision]
    if above:
        yield "revision_above_head", f"{_named(above)} above its current revision {record.revision}"
    unreadable = [row.revision for row in rows if row.content == "unreadable"]
    if unreadable:
        yield "revision_unreadable", f"the content of {_named(unreadable)} cannot be read"
    unlisted = [row.revision for row in rows if row.listed is False]
    if unlisted:
        yield "revision_unlisted", f"the receipt of its scope revision does not name {_named(unlisted)}"
    if rows and rows[0].revision > 1:
        yield "revision_gap", f"there is no row before revision {rows[0].revision}"
    for before, row in itertools.pairwise(rows):
        if row.revision <= before.revision or row.revision < 1:
            yield "revision_order", f"revision {row.revision} stands after revision {before.revision}"
        elif row.scope_revision < before.scope_revision or row.recorded_at < before.recorded_at:
            yield "revision_order", f"revision {row.revision} was written before revision {before.revision}"
        elif row.revision != before.revision + 1 or (before.content != "erased" and row.content == "erased"):
            # Pruning erases the content of the oldest: no row goes, and what is kept has no hole.
            yield "revision_gap", f"content is missing between revisions {before.revision} and {record.revision}"


def _vector_fault(vector: VectorFacts, record: RecordFacts, generation: GenerationFacts) -> tuple[str, str] | None:
    where = f"in generation {vector.generation}, of revision {vector.revision}"
    if vector.numbers != generation.dims:
        return "vector_size", f"{where}: {vector.numbers:g} numbers instead of {generation.dims}"
    if not abs(vector.length - 1) <= _LONGEST_STRAY:  # NaN is no number near 1
        return "vector_length", f"{where}: its length is not 1"
    if not 1 <= vector.since <= vector.revision <= record.revision:
        return "vector_revision", f"{where}, since {vector.since}: the record is at {record.revision}"
    if not vector.past and generation.state == "active" and vector.revision != record.revision:
        return "vector_revision", f"{where}: the record is at {record.revision}"
    spanned = [row for row in record.revisions if vector.since <= row.revision <= vector.revision]
    texts = {row.text for row in spanned if row.text is not None}
    if vector.past and (vector.revision == record.revision or all(row.content == "erased" for row in spanned)):
        return "vector_past", f"{where}: a past vector of no revision that is past and kept"
    if len(texts) > 1:
        return "vector_text", f"{where}, since {vector.since}: these revisions have different texts"
    return None


def _named(revisions: Sequence[int], most: int = 5) -> str:
    more = f" and {len(revisions) - most} more" if len(revisions) > most else ""
    return f"revision {', '.join(map(str, revisions[:most]))}{more}"
