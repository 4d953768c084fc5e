"""What the in-memory store tells the doctor of itself.

Owns the way from its rows to plain facts. Holds no rule (``diagnosis.py``); the store holds its lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from vmem_core import indexing, tokens
from vmem_core.diagnosis import (
    ChangeFacts,
    Columns,
    GenerationFacts,
    ReceiptFacts,
    RecordFacts,
    RevisionFacts,
    ScopeFacts,
    Stray,
    VectorFacts,
)
from vmem_core.results import Change, Generation, Receipt
from vmem_core.store import Progress
from vmem_core.stores._memory_rows import MemoryRow, RevisionRow, ScopeRow
from vmem_core.values import to_micros


class _Named:
    """What receipts name, by scope revision: revisions that were written, records that were forgotten."""

    def __init__(self, receipts: Sequence[Receipt]) -> None:
        self.written: dict[int, set[tuple[str, int]]] = {}
        self._forgotten: dict[int, set[str]] = {}
        for receipt in receipts:
            written = {(one.record_id, one.revision) for one in receipt.changes if one.action != "forget"}
            self.written[receipt.scope_revision] = written
            gone = {one.record_id for one in receipt.changes if one.action == "forget"}
            self._forgotten[receipt.scope_revision] = gone

    def forgets(self, row: MemoryRow) -> bool | None:
        """Whether the receipt of a record's forget names it; None if it is not kept, or not forgotten."""
        gone = self._forgotten.get(row.forgotten_at) if row.forgotten else None
        return None if gone is None else row.record_id in gone


class MemoryFacts:
    """The facts of an in-memory store.

    Args:
        scopes: Its scopes by key.
        rows: Its records by id.
        generations: Its generations that have vectors.
        language: Of the search tokens.
        progress: Called with how many records were looked at, and how many there are.
    """

    def __init__(
        self,
        scopes: Mapping[str, ScopeRow],
        rows: Mapping[str, MemoryRow],
        generations: Collection[Generation],
        language: str,
        progress: Progress | None = None,
    ) -> None:
        self.language: str | None = language
        self._scopes, self._rows, self._generations = list(scopes.values()), rows, generations
        self._progress, self._done = progress, 0

    def generations(self) -> list[GenerationFacts]:
        """Every generation; vectors lie in the rows, so that no table can be missing."""
        return [GenerationFacts(one.number, one.dims, one.state, (True, True)) for one in self._generations]

    def scopes(self) -> Iterator[ScopeFacts]:
        """Every scope."""
        for number, row in enumerate(self._scopes):
            yield ScopeFacts(number, row.scope, row.revision, row.last_stamp, len(row.rows))

    def records(self, scope: ScopeFacts) -> Iterator[RecordFacts]:
        """The scope's records, by number."""
        owner = self._scopes[scope.number]
        named = _Named([stored.receipt for stored in owner.receipts.values()])
        for row in owner.rows:
            yield self._record(row, owner, named)
        self._done += len(owner.rows)
        if self._progress is not None:
            self._progress(self._done, max(self._done, len(self._rows)))

    def _record(self, row: MemoryRow, owner: ScopeRow, named: _Named) -> RecordFacts:
        current = row.record if row.revisions else None
        head = row.revisions[-1] if row.revisions and not row.forgotten else None
        columns = Columns(
            indexing.FORGOTTEN if row.forgotten else 1 if current is None else indexing.state_code(current),
            0 if current is None else indexing.KIND_CODES[current.kind],
            0 if current is None else indexing.ORIGIN_CODES[current.origin],
            None if current is None else indexing.expiry_micros(current),
            row.key if row.number in owner.by_key.get(row.key, ()) else None,
            row.tokens,
            b"" if current is None else tokens.facets(current.metadata),
        )
        return RecordFacts(
            number=row.number,
            record_id=row.record_id,
            revision=0 if row.forgotten else len(row.revisions),
            entry=0 if head is None else head.entry,
            changed=row.forgotten_at if head is None else head.scope_revision,
            columns=columns,
            current=current,
            revisions=[_revision(row, place, one, named) for place, one in enumerate(row.revisions, 1)],
            vectors=list(self._vectors(row)),
            mentions=tuple(row.mentioned_by),
            marks=list(self._marks(row)),
            forget_listed=named.forgets(row),
        )

    def _vectors(self, row: MemoryRow) -> Iterator[VectorFacts]:
        active, pending = self._number("active"), self._number("pending")
        if row.vector is not None:
            yield VectorFacts.of(active, row.vector_since, len(row.revisions), row.vector, past=False)
        for since, until, vector in row.past_vectors:
            yield VectorFacts.of(active, since, until, vector, past=True)
        if row.prepared is not None and row.prepared[1] is not None:
            yield VectorFacts.of(pending, row.prepared[0], row.prepared[0], row.prepared[1], past=False)

    def _marks(self, row: MemoryRow) -> Iterator[tuple[int, int]]:
        if row.unembeddable:
            yield self._number("active"), row.unembeddable
        if row.prepared is not None and row.prepared[1] is None:
            yield self._number("pending"), row.prepared[0]

    def _number(self, state: str) -> int:
        return next((one.number for one in self._generations if one.state == state), 0)

    def receipts(self, scope: ScopeFacts) -> Iterator[ReceiptFacts]:
        """The scope's receipts, by scope revision."""
        owner = self._scopes[scope.number]
        for stored in sorted(owner.receipts.values(), key=lambda stored: stored.receipt.scope_revision):
            receipt = stored.receipt
            yield ReceiptFacts(
                receipt.scope_revision,
                receipt.operation_id,
                to_micros(receipt.committed_at),
                receipt.redacted,
                not any(stored.request.salt + stored.request.digest),
                [self._change(change, owner) for change in receipt.changes],
            )

    def _change(self, change: Change, owner: ScopeRow) -> ChangeFacts:
        row = self._rows.get(change.record_id)
        if row is None or row.scope is not owner:
            return ChangeFacts(change.record_id, change.revision, change.action, None, False, None)
        found = row.revisions[change.revision - 1] if change.revision <= len(row.revisions) else None
        written = None if found is None else (found.scope_revision, found.recorded_at)
        return ChangeFacts(change.record_id, change.revision, change.action, len(row.revisions), row.forgotten, written)

    def strays(self) -> Iterator[Stray]:
        """Records whose scope does not list them, or is not there."""
        known = {id(scope) for scope in self._scopes}
        count = sum(
            id(row.scope) not in known or row.number >= len(row.scope.rows) or row.scope.rows[row.number] is not row
            for row in self._rows.values()
        )
        if count:
            yield Stray("records", "a scope", count)


def _revision(row: MemoryRow, place: int, one: RevisionRow, named: _Named) -> RevisionFacts:
    written = named.written.get(one.scope_revision)
    return RevisionFacts(
        revision=place if one.record is None else one.record.revision,
        entry=one.entry,
        scope_revision=one.scope_revision,
        recorded_at=one.recorded_at,
        content="erased" if one.record is None else "kept",
        text=None if one.record is None else hash(one.record.text),
        listed=None if written is None else (row.record_id, place) in written,
    )
