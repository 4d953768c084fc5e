"""What a SQL store tells the doctor of itself: plain facts, in blocks of rows, from one snapshot.

Owns these reads, for both SQL stores. Holds no rule (``diagnosis.py``), and no more than a block of rows at a time.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from vmem_core.diagnosis import (
    ChangeFacts,
    Columns,
    Content,
    GenerationFacts,
    ReceiptFacts,
    RecordFacts,
    RevisionFacts,
    ScopeFacts,
    Stray,
    VectorFacts,
)
from vmem_core.errors import InvalidRequestError
from vmem_core.records import Record, Scope
from vmem_core.results import Receipt
from vmem_core.store import Progress
from vmem_core.stores import _sql
from vmem_core.stores._database import Database
from vmem_core.stores._settings import check_language, is_current, setting

BLOCK: Final = 256  # rows of a statement
_MOST_BODIES: Final = 1 << 20  # characters of receipts' bodies in a block
# What a row that is not ours, or is damaged, may raise on its way to a value.
_FAULTS: Final = (InvalidRequestError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
_VECTORS: Final = re.compile(r"vmem_(past_)?vectors_(\d+)")

_GENERATIONS: Final = "select generation, dims, state from vmem_generations order by generation"
_SCOPES: Final = """select scope_id, scope_key, revision, last_stamp, records from vmem_scopes
  where scope_id > ? order by scope_id limit ?"""
_TOTAL: Final = "select coalesce(sum(records), 0) from vmem_scopes"
_HEADS: Final = """select number, record_id, revision, entry, changed, state, kind, origin, expires_at, text_key,
  tokens, facets from vmem_records where number > ? and number <= ? order by number limit ?"""
_REVISIONS: Final = """select number, revision, entry, scope_revision, recorded_at, body from vmem_revisions
  where number >= ? and number <= ? and (number > ? or revision > ?) order by number, revision limit ?"""
_MENTIONS: Final = """select number, min(receipt), max(receipt) from vmem_mentions where number between ? and ?
  group by number"""
_MARKS: Final = """select number, generation, revision from vmem_unembeddable where number between ? and ?
  order by number, generation"""
_NAMING: Final = """select number, operation_id, committed_at, redacted, request, body from vmem_receipts
  where number in (select value from json_each(?))"""
_LENGTHS: Final = """select number, length(body) from vmem_receipts where number > ? and number <= ?
  order by number limit ?"""
_RECEIPTS: Final = """select number, operation_id, committed_at, redacted, request, body from vmem_receipts
  where number between ? and ? order by number"""
_TARGETS: Final = """select record_id, number, revision, state from vmem_records
  where record_id in (select value from json_each(?))"""
_WRITTEN: Final = """select number, revision, scope_revision, recorded_at from vmem_revisions
  where number in (select value from json_each(?)) and revision between ? and ?"""

_NO_SCOPE: Final = "not exists (select 1 from vmem_scopes s where s.scope_id = {})"
_NO_RECORD: Final = "not exists (select 1 from vmem_records r where r.number = t.number)"
_STRAYS: Final = (
    ("vmem_records", "a scope", _NO_SCOPE.format("(t.number >> 32)")),
    ("vmem_revisions", "a record", _NO_RECORD),
    ("vmem_receipts", "a scope", f"t.scope_id <> (t.number >> 32) or {_NO_SCOPE.format('t.scope_id')}"),
    ("vmem_mentions", "a record", _NO_RECORD),
    (
        "vmem_unembeddable",
        "a record or a generation",
        f"""{_NO_RECORD} or not exists (select 1 from vmem_generations g
          where g.generation = t.generation and g.state <> 'retired')""",
    ),
    ("vmem_messages", "a scope", _NO_SCOPE.format("t.scope_id")),
)


def facts_of(
    database: Database, tables: Collection[str], language: str | None, progress: Progress | None
) -> SqlFacts | None:
    """The facts of a store; None if it has no tables yet.

    Args:
        database: A connection inside a transaction that sees one snapshot.
        tables: The names of all its tables ``vmem_*``.
        language: That the store was opened with, or None.
        progress: Called with how many records were looked at, and how many there are.

    Raises:
        SchemaVersionError: If a newer library wrote the store.
        InvalidRequestError: If ``language`` is not the store's.
    """
    if "vmem_schema" not in tables:
        return None
    current = is_current(database)  # before all else: a newer schema is not ours to judge
    check_language(database, language)
    return SqlFacts(database, tables, setting(database, "language") if current else None, progress)


class _Named(NamedTuple):
    """What a receipt names: revisions that it wrote, records that it forgot."""

    written: frozenset[tuple[str, int]]
    forgotten: frozenset[str]


class SqlFacts:
    """The facts of a SQL store.

    Args:
        database: A connection inside a transaction that sees one snapshot.
        tables: The names of all its tables ``vmem_*``.
        language: Of the search tokens; None if they are an older tokenizer's.
        progress: Called with how many records were looked at, and how many there are.
    """

    def __init__(
        self, database: Database, tables: Collection[str], language: str | None, progress: Progress | None = None
    ) -> None:
        self.language = language
        self._database, self._progress = database, progress
        found = (_VECTORS.fullmatch(table) for table in tables)
        self._vectors = sorted({(int(match[2]), bool(match[1])) for match in found if match is not None})
        self._done, self._total = 0, 0
        self._named: dict[int, _Named] = {}

    def generations(self) -> list[GenerationFacts]:
        """Every generation with a row or a table."""
        rows = {row[0]: (row[1], row[2]) for row in self._database.execute(_GENERATIONS)}
        numbers = sorted({*rows, *(number for number, _ in self._vectors)})
        return [
            GenerationFacts(
                number,
                *rows.get(number, (0, "unknown")),
                ((number, False) in self._vectors, (number, True) in self._vectors),
            )
            for number in numbers
        ]

    def scopes(self) -> Iterator[ScopeFacts]:
        """Every scope, by number."""
        self._total = int(self._database.execute(_TOTAL).fetchone()[0])
        for row in self._blocks(_SCOPES, (-1,)):
            yield ScopeFacts(row[0], _attempt(_sql.load_scope, row[1]), *row[2:])

    def _blocks(self, statement: str, after: tuple[int, ...], *bounds: int) -> Iterator[Any]:
        """All rows of a statement that goes on after the first columns of the last row."""
        while rows := self._database.execute(statement, (*after, *bounds, BLOCK)).fetchall():
            yield from rows
            after = tuple(rows[-1][: len(after)])

    # --- records ------------------------------------------------------------------------------------------------

    def records(self, scope: ScopeFacts) -> Iterator[RecordFacts]:
        """The scope's records, by number."""
        low, high = _sql.scope_numbers(scope.number)
        heads = self._blocks(_HEADS, (low - 1,), high)
        while block := list(itertools.islice(heads, BLOCK)):
            yield from self._block(scope, block)
            self._done += len(block)
            if self._progress is not None:
                self._progress(self._done, max(self._done, self._total))

    def _block(self, scope: ScopeFacts, heads: Sequence[Any]) -> Iterator[RecordFacts]:
        bounds = (heads[0][0], heads[-1][0])
        vectors = self._vectors_of(bounds)
        start = scope.number << 32
        mentions = {row[0]: tuple(one - start for one in row[1:]) for row in self._database.execute(_MENTIONS, bounds)}
        marks: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, generation, revision in self._database.execute(_MARKS, bounds).fetchall():
            marks[number].append((generation, revision))
        self._name(scope, [head[4] for head in heads if head[5] == _sql.FORGOTTEN])
        forgets = {head[0]: self._forgets(head) for head in heads}
        revisions = self._revisions(scope, {head[0]: head for head in heads}, bounds)
        for head in heads:
            number, record_id, revision, entry, changed, *_ = head
            rows, current = revisions.get(number, ([], None))
            yield RecordFacts(
                number - start,
                record_id,
                revision,
                entry,
                changed - start,
                _columns(head),
                current,
                rows,
                vectors.get(number, ()),
                mentions.get(number, ()),
                marks.get(number, ()),
                forgets[number],
            )

    def _forgets(self, head: Sequence[Any]) -> bool | None:
        named = self._named.get(head[4]) if head[5] == _sql.FORGOTTEN else None
        return None if named is None else head[1] in named.forgotten

    def _revisions(
        self, scope: ScopeFacts, heads: dict[int, Any], bounds: tuple[int, int]
    ) -> dict[int, tuple[list[RevisionFacts], Record | None]]:
        """The rows of revisions of a block of records, and the content of each current one."""
        found: dict[int, tuple[list[RevisionFacts], Record | None]] = {}
        after = (bounds[0], -(2**62))
        while rows := self._database.execute(_REVISIONS, (after[0], bounds[1], *after, BLOCK)).fetchall():
            after = (rows[-1][0], rows[-1][1])
            self._name(scope, [(scope.number << 32) + row[3] for row in rows])
            for row in rows:
                head = heads.get(row[0])
                if head is not None:  # else it is a stray
                    facts, record = self._revision(scope, head, row)
                    known = found.get(row[0], ([], None))
                    known[0].append(facts)
                    found[row[0]] = (known[0], record if row[1] == head[2] else known[1])
        return found

    def _revision(
        self, scope: ScopeFacts, head: Sequence[Any], row: Sequence[Any]
    ) -> tuple[RevisionFacts, Record | None]:
        _, revision, entry, scope_revision, recorded_at, body = row
        record = _attempt(_sql.load_doubted_record, scope.scope, head[1], revision, scope_revision, recorded_at, body)
        content: Content = "kept" if record is not None else _content(body)
        named = self._named.get((scope.number << 32) + scope_revision)
        listed = None if named is None else (head[1], revision) in named.written
        text = None if record is None else hash(record.text)
        return RevisionFacts(revision, entry, scope_revision, recorded_at, content, text, listed), record

    def _vectors_of(self, bounds: tuple[int, int]) -> dict[int, list[VectorFacts]]:
        found: defaultdict[int, list[VectorFacts]] = defaultdict(list)
        for generation, past in self._vectors:
            table = _sql.past_vectors_table(generation) if past else _sql.vectors_table(generation)
            place = "entry" if past else "number"
            statement = f"""select number, {place}, since, revision, vector from {table}
              where number >= ? and number <= ? and (number > ? or {place} > ?) order by number, {place} limit ?"""
            after = (bounds[0], -1)
            while rows := self._database.execute(statement, (after[0], bounds[1], *after, BLOCK)).fetchall():
                after = (rows[-1][0], rows[-1][1])
                for number, _, since, revision, vector in rows:
                    found[number].append(VectorFacts.of(generation, since, revision, _bytes(vector), past=past))
        return found

    def _name(self, scope: ScopeFacts, receipts: Sequence[int]) -> None:
        """Have what these receipts name at hand; those that the block before needed stay."""
        wanted = set(receipts)
        self._named = {number: named for number, named in self._named.items() if number in wanted}
        missing = sorted(wanted - self._named.keys())
        if missing:
            for row in self._database.execute(_NAMING, (_sql.id_list(missing),)):
                receipt = _receipt(scope.scope, row)
                if receipt is not None:  # one that cannot be read is told of by itself
                    self._named[row[0]] = _named(receipt)

    # --- receipts -----------------------------------------------------------------------------------------------

    def receipts(self, scope: ScopeFacts) -> Iterator[ReceiptFacts]:
        """The scope's receipts, by scope revision."""
        low, high = _sql.scope_numbers(scope.number)
        after = low - 1
        while lengths := self._database.execute(_LENGTHS, (after, high, BLOCK)).fetchall():
            sums = itertools.accumulate(row[1] for row in lengths)
            first, after = lengths[0][0], lengths[0][0]
            after = max([after, *(row[0] for row, so_far in zip(lengths, sums, strict=True) if so_far <= _MOST_BODIES)])
            rows = self._database.execute(_RECEIPTS, (first, after)).fetchall()
            yield from self._with_targets(scope, [(row, _receipt(scope.scope, row)) for row in rows])

    def _with_targets(self, scope: ScopeFacts, block: Sequence[tuple[Any, Receipt | None]]) -> Iterator[ReceiptFacts]:
        changes = [change for _, receipt in block if receipt is not None for change in receipt.changes]
        ids = sorted({change.record_id for change in changes})
        rows = self._database.execute(_TARGETS, (_sql.id_list(ids),)).fetchall() if ids else []
        targets = {row[0]: row[1:] for row in rows if row[1] >> 32 == scope.number}
        written = self._written([target[0] for target in targets.values()], [change.revision for change in changes])
        for row, receipt in block:
            named = [
                _change(change.record_id, change.revision, change.action, targets, written)
                for change in (receipt.changes if receipt is not None else ())
            ]
            number, operation_id, committed_at, redacted, request, _ = row
            yield ReceiptFacts(
                number - (scope.number << 32),
                operation_id,
                committed_at,
                bool(redacted),
                not any(_bytes(request)),
                None if receipt is None else named,
            )

    def _written(self, numbers: Sequence[int], revisions: Sequence[int]) -> dict[tuple[int, int], tuple[int, int]]:
        if not numbers:
            return {}
        values = (_sql.id_list(numbers), min(revisions), max(revisions))
        return {(row[0], row[1]): (row[2], row[3]) for row in self._database.execute(_WRITTEN, values)}

    # --- what belongs to nothing --------------------------------------------------------------------------------

    def strays(self) -> Iterator[Stray]:
        """Rows without a scope or a record, counted by table."""
        vectors = [
            (_sql.past_vectors_table(number) if past else _sql.vectors_table(number), "a record", _NO_RECORD)
            for number, past in self._vectors
        ]
        for table, owner, condition in (*_STRAYS, *vectors):
            count = self._database.execute(f"select count(*) from {table} t where {condition}").fetchone()[0]
            if count:
                yield Stray(table, owner, count)


def _columns(head: Sequence[Any]) -> Columns:
    state, kind, origin, expires_at, text_key, tokens, facets = head[5:]
    return Columns(state, kind, origin, expires_at, text_key, _bytes(tokens), _bytes(facets))


def _bytes(value: object) -> bytes:
    """A blob, also where something else stands in its place: no fault of a store's ends the look at it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return str(value).encode("utf-8", "surrogateescape")


def _attempt(load: Callable[..., Any], *values: Any) -> Any:
    """What is loaded, or None if the values are not what the library wrote."""
    try:
        return load(*values)
    except _FAULTS:
        return None


def _receipt(scope: Scope | None, row: Sequence[Any]) -> Receipt | None:
    number, operation_id, committed_at, redacted, request, body = row
    stored = _attempt(_sql.load_receipt, scope, operation_id, number, committed_at, redacted, _bytes(request), body)
    return None if stored is None else stored.receipt


def _named(receipt: Receipt) -> _Named:
    written = frozenset((one.record_id, one.revision) for one in receipt.changes if one.action != "forget")
    return _Named(written, frozenset(one.record_id for one in receipt.changes if one.action == "forget"))


def _change(
    record_id: str, revision: int, action: str, targets: dict[str, Any], written: dict[tuple[int, int], tuple[int, int]]
) -> ChangeFacts:
    number, head, state = targets.get(record_id, (None, None, 0))
    row = None if number is None else written.get((number, revision))
    return ChangeFacts(record_id, revision, action, head, state == _sql.FORGOTTEN, row)


def _content(body: object) -> Content:
    """What a body is that cannot be read: the zeros that took its place, or damaged."""
    return "erased" if isinstance(body, str) and not body.strip("\x00") else "unreadable"
