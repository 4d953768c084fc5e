"""The in-memory store: the reference for the others, for tests and for one process.

Owns how a store keeps what a plan says, in plain dicts and lists under one lock. Holds no rule, and nothing that
outlives the process.
"""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from vmem_core import sync
from vmem_core.clock import Clock, check_clock, read_micros
from vmem_core.errors import StoreUnavailableError
from vmem_core.imports import Holder, Import, ScopeKnown, settle
from vmem_core.operations import Operation
from vmem_core.plan import (
    Head,
    Kept,
    Outcome,
    Plan,
    Reads,
    Snapshot,
    StoredReceipt,
    Survey,
    Write,
)
from vmem_core.records import Record, Scope, check_scope
from vmem_core.results import Finding, Findings, Generation, Receipt
from vmem_core.store import ENGLISH, Found, Listing, Progress, Search, check_language
from vmem_core.stores._memory_generations import GenerationRows, MemoryGenerations
from vmem_core.stores._memory_rows import ERASED, MemoryRow, RevisionRow, ScopeRow, expired, head_of, known_of, listed
from vmem_core.stores._memory_upkeep import MemoryUpkeep
from vmem_core.text import text_key
from vmem_core.values import from_micros, to_micros

if TYPE_CHECKING:
    from vmem_core.index import ScopeIndex


class InMemoryStore(MemoryUpkeep):
    """A store that lives and dies with the process.

    Args:
        clock: Returns the time as an aware datetime; None: the machine's clock.
        language: Of the search tokens, such as ``"english"`` (the default).

    Raises:
        InvalidRequestError: For a clock that is not callable or a language without a stemmer.

    >>> store = InMemoryStore()
    >>> store.sync.scope_revision(Scope(user_id="ada"))
    0
    """

    def __init__(self, *, clock: Clock | None = None, language: str | None = None) -> None:
        self._clock = check_clock(clock)
        self._language = check_language(language) or ENGLISH
        self._lock = threading.Lock()
        self._scopes: dict[str, ScopeRow] = {}
        self._rows: dict[str, MemoryRow] = {}
        self._entries = 0
        self._generations = GenerationRows()
        self._closed = False

    @property
    def embeddings(self) -> MemoryGenerations:
        """The generations of its vectors."""
        return MemoryGenerations(self)

    @property
    def sync(self) -> sync.Facade:
        """The same verbs for threads, scripts and notebooks."""
        return sync.facade(self)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Forget everything. Calling it again does nothing."""
        with self._lock:
            self._closed = True
            self._scopes.clear()
            self._rows.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the store is closed; make a new one", retryable=False)

    @property
    def known_generation(self) -> Generation | None:
        """The active generation, or None."""
        return self._generations.active

    # --- writes -----------------------------------------------------------------------------------------------

    async def run(self, operation: Operation) -> Outcome:
        """Decide an operation and apply its plan, under the lock."""
        from vmem_core.indexing import token_table

        tokens = token_table(operation.texts(), self._language)
        with self._lock:
            self._check_open()
            plan = operation.decide(self._snapshot(operation))
            if not plan.replayed:
                self._apply(plan, operation.scope, tokens)
            return self._outcome(plan)

    async def replay(self, operation: Operation) -> Outcome | None:
        """What ``run`` would answer if the operation was committed before; None if it was not."""
        with self._lock:
            self._check_open()
            snapshot = self._snapshot(operation)
            return self._outcome(operation.decide(snapshot)) if snapshot.stored else None

    async def run_imports(self, operations: Sequence[Import], *, dry_run: bool = False) -> list[str | None]:
        """Settle and apply a batch of imports, under the lock."""
        from vmem_core.indexing import token_table

        tokens = token_table((text for one in operations for text in one.texts()), self._language)
        with self._lock:
            self._check_open()
            ids = [operation.record_id for operation in operations]
            found = [self._rows[record_id] for record_id in ids if record_id in self._rows]
            holders = {row.record_id: Holder(row.scope.scope, row.forgotten) for row in found}
            known = {scope: self._known(scope) for scope in {operation.scope for operation in operations}}
            plans, reasons = settle(operations, known, holders)
            for plan in () if dry_run else plans:
                self._apply(plan, plan.receipt.scope, tokens)
            return reasons

    def _known(self, scope_value: Scope) -> ScopeKnown:
        scope = self._scopes.get(scope_value.key) or ScopeRow(scope_value)
        now = max(read_micros(self._clock), scope.last_stamp)
        stored = ChainMap({}, scope.receipts)  # what is settled is only looked at until it is applied
        return ScopeKnown(scope.revision, from_micros(now), stored)

    def _outcome(self, plan: Plan) -> Outcome:
        records = tuple(self._present(plan.receipt)) if plan.replayed else tuple(w.record for w in plan.writes)
        copies = tuple(replace(record) for record in records)
        present = tuple(replace(record) for record in plan.present)
        return Outcome(plan.receipt, plan.replayed, copies, plan.forgotten, present, scrubbed=True)

    def _present(self, receipt: Receipt) -> Iterator[Record]:
        for change in receipt.changes:
            row = self._rows[change.record_id]
            for revision in row.revisions if change.action != "forget" and not row.forgotten else ():
                if revision.record is not None and revision.record.revision == change.revision:
                    yield revision.record

    def _snapshot(self, operation: Operation) -> Snapshot:
        scope = self._scopes.get(operation.scope.key) or ScopeRow(operation.scope)
        now = max(read_micros(self._clock), scope.last_stamp)
        reads = operation.reads()
        mentions = scope.mentions.get(operation.operation_id, ())
        return Snapshot(
            scope_revision=scope.revision,
            now=from_micros(now),
            stored=scope.receipts.get(operation.operation_id),
            heads=self._heads(scope, reads, mentions),
            equals={key: self._equals(scope, key, now) for key in reads.equal_texts},
            generation=self._generations.active,
            mentions=mentions,
            processed=frozenset(scope.messages.intersection(reads.message_ids)),
        )

    def _heads(self, scope: ScopeRow, reads: Reads, mentions: Sequence[str]) -> dict[str, Head]:
        ids = [row.record_id for row in scope.rows] if reads.whole_scope else [*reads.record_ids, *mentions]
        rows = (self._rows[record_id] for record_id in ids if record_id in self._rows)
        return {row.record_id: head_of(row, scope, reads) for row in rows}

    def _equals(self, scope: ScopeRow, key: int, now: int) -> tuple[Record, ...]:
        records = (scope.rows[number].record for number in sorted(scope.by_key.get(key, ())))
        return tuple(r for r in records if r is not None and r.status == "active" and not expired(r, now))

    def _apply(self, plan: Plan, scope_value: Scope, tokens: dict[str, bytes]) -> None:
        scope = self._scopes.setdefault(scope_value.key, ScopeRow(scope_value))
        if plan.starts is not None:
            self._generations.add(*plan.starts, "active")
        for write in plan.writes:
            self._write(write, scope, tokens)
        for record_id in plan.forgets:
            self._forget(self._rows[record_id], plan.receipt.scope_revision)
        for record_id in plan.mentions:
            self._rows[record_id].mentioned_by.append(plan.receipt.scope_revision)
        scope.messages.update(plan.messages)
        scope.revision = plan.receipt.scope_revision
        scope.last_stamp = to_micros(plan.receipt.committed_at)
        assert plan.request is not None
        scope.receipts[plan.receipt.operation_id] = StoredReceipt(plan.receipt, plan.request)
        if plan.mentions:
            scope.mentions[plan.receipt.operation_id] = plan.mentions
        self._redact(scope, set(plan.redacts))

    def _write(self, write: Write, scope: ScopeRow, tokens: dict[str, bytes]) -> None:
        record = write.record
        if write.action == "create":
            row = MemoryRow(len(scope.rows), record.id, scope)
            scope.rows.append(row)
            self._rows[record.id] = row
        row = self._rows[record.id]
        self._entries += 1
        row.revisions.append(RevisionRow(self._entries, record, record.scope_revision))
        if write.text_changed:
            scope.by_key[row.key].discard(row.number)
            row.key = text_key(record.text)
            scope.by_key[row.key].add(row.number)
            row.tokens = tokens[record.text]
        self._set_vector(row, write)
        scope.changed.add(row.number)

    def _set_vector(self, row: MemoryRow, write: Write) -> None:
        """A changed text never keeps the old vector; an unchanged one does."""
        if write.text_changed and row.vector is not None:
            row.past_vectors.append((row.vector_since, write.record.revision - 1, row.vector))
            row.vector = None
        if write.vector is not None:
            row.vector_since = write.record.revision if row.vector is None else row.vector_since
            row.vector = write.vector

    def _forget(self, row: MemoryRow, at: int) -> None:
        row.scope.by_key[row.key].discard(row.number)
        self._redact(row.scope, set(row.mentioned_by))
        row.forgotten, row.tokens, row.vector, row.key, row.prepared, row.unembeddable = True, b"", None, 0, None, 0
        row.forgotten_at = at
        row.revisions.clear()
        row.past_vectors.clear()
        row.mentioned_by.clear()
        row.scope.changed.add(row.number)

    def _redact(self, scope: ScopeRow, revisions: set[int]) -> None:
        for operation_id, stored in scope.receipts.items() if revisions else ():
            if stored.receipt.scope_revision in revisions:
                scope.receipts[operation_id] = StoredReceipt(replace(stored.receipt, redacted=True), ERASED)

    async def scrub(self) -> None:
        """Nothing to do: forgotten text is gone from memory with the forget."""
        self._check_open()

    # --- reads ------------------------------------------------------------------------------------------------

    async def search(self, scope: Scope, search: Search) -> list[Found]:
        """The best hits, in order."""
        with self._lock:
            return self._search(self._scope(scope), search)

    async def survey(self, scope: Scope, searches: Sequence[Search], equal_texts: Sequence[int]) -> Survey:
        """The scope's revision, the best records of each search, and active records by text key, from one read."""
        with self._lock:
            state = self._scope(scope)
            now = max(read_micros(self._clock), state.last_stamp)
            similar = tuple(tuple(found.record for found in self._search(state, one)) for one in searches)
            equals = {key: self._equals(state, key, now) for key in equal_texts}
            return Survey(state.revision, similar, equals)

    async def processed(self, scope: Scope, message_ids: Sequence[str]) -> frozenset[str]:
        """Those of the messages that an extraction of this scope has read."""
        with self._lock:
            return frozenset(self._scope(scope).messages.intersection(message_ids))

    def _search(self, state: ScopeRow, search: Search) -> list[Found]:
        from vmem_core import indexing

        if search.recorded_as_of is not None or search.at_scope_revision is not None:
            return self._search_known(state, search)
        now = max(read_micros(self._clock), state.last_stamp)
        query = indexing.index_query(search, self._language, now, self._generations.active)
        ranked = indexing.rank(self._index(state), search, query)
        found = ((state.rows[hit.number].record, hit) for hit in ranked)
        return [
            Found(replace(record), hit.score, hit.match, hit.vector_rank, hit.lexical_rank)
            for record, hit in found
            if record is not None
        ]

    def _search_known(self, state: ScopeRow, search: Search) -> list[Found]:
        from vmem_core import indexing

        now = self._known_now(state, search)
        known = [one for row in state.rows if (one := known_of(row, search)) is not None]
        hits = indexing.search_known(known, search, self._language, now, self._generations.active)
        return [
            Found(replace(one.record), hit.score, hit.match, hit.vector_rank, hit.lexical_rank) for one, hit in hits
        ]

    def _known_now(self, state: ScopeRow, search: Search) -> int:
        if search.recorded_as_of is not None:
            return to_micros(search.recorded_as_of)
        until = search.at_scope_revision or 0
        commits = (stored.receipt for stored in state.receipts.values())
        stamps = [to_micros(r.committed_at) for r in commits if r.scope_revision <= until]
        stamps += [r.recorded_at for row in state.rows for r in row.revisions if r.scope_revision <= until]
        return max(stamps, default=0)

    def _index(self, state: ScopeRow) -> ScopeIndex:
        from vmem_core import indexing
        from vmem_core.index import Row, ScopeIndex

        generation = self._generations.active
        number = generation.number if generation else None
        if state.index is None or state.index_generation != number:
            state.index, state.index_generation = ScopeIndex(generation.dims if generation else None), number
            state.changed = {row.number for row in state.rows}
        rows, vectors = [], {}
        for number in sorted(state.changed):
            row = state.rows[number]
            record = row.record
            if record is None:
                rows.append(Row(number, 0, indexing.FORGOTTEN, 0, None, b"", b""))
                continue
            rows.append(indexing.record_row(number, row.revisions[-1].entry, record, row.tokens))
            if row.vector is not None:
                vectors[number] = row.vector
        if rows:
            state.index.apply(rows, vectors)
        state.changed.clear()
        return state.index

    def _scope(self, scope: Scope) -> ScopeRow:
        self._check_open()
        return self._scopes.get(scope.key) or ScopeRow(scope)

    def _owned(self, scope: Scope, record_id: str) -> MemoryRow | None:
        self._check_open()
        row = self._rows.get(record_id)
        return row if row is not None and row.scope.scope == scope else None

    async def diagnose(self, *, progress: Progress | None = None) -> list[Finding]:
        """What does not agree in the store; an empty list if all is well. Changes nothing."""
        from vmem_core.diagnosis import diagnose
        from vmem_core.stores._memory_facts import MemoryFacts

        with self._lock:
            self._check_open()
            facts = MemoryFacts(self._scopes, self._rows, self._generations.kept, self._language, progress)
            return Findings(diagnose(facts))

    async def get(self, scope: Scope, record_id: str) -> Record | None:
        """The current revision, retracted or not, unless expired, forgotten, foreign or unknown."""
        with self._lock:
            row = self._owned(scope, record_id)
            record = row.record if row is not None else None
            now = max(read_micros(self._clock), self._scope(scope).last_stamp)
            return None if record is None or expired(record, now) else replace(record)

    async def history(self, scope: Scope, record_id: str) -> list[Record]:
        """All kept revisions, oldest first."""
        with self._lock:
            row = self._owned(scope, record_id)
            return [replace(r.record) for r in (row.revisions if row else ()) if r.record is not None]

    async def revisions(self, scope: Scope, wanted: Sequence[tuple[str, int]]) -> Sequence[Kept]:
        """What is left of each wanted (record id, revision), in order, from one read."""
        with self._lock:
            return [self._kept(scope, record_id, revision) for record_id, revision in wanted]

    def _kept(self, scope: Scope, record_id: str, revision: int) -> Kept:
        row = self._owned(scope, record_id)
        if row is None or row.forgotten:
            return Kept(None, gone=True)
        records = (r.record for r in row.revisions if r.record is not None)
        return Kept(next((replace(r) for r in records if r.revision == revision), None), gone=False)

    async def list(self, scope: Scope, listing: Listing) -> tuple[list[Record], int | None]:
        """A page, newest creation first, and the number to go on before."""
        with self._lock:
            state = self._scope(scope)
            now = max(read_micros(self._clock), state.last_stamp)
            before = len(state.rows) if listing.before is None else listing.before
            page: list[tuple[int, Record]] = []
            for row in reversed(state.rows[:before]):
                record = row.record
                if record is not None and listed(record, listing, now):
                    page.append((row.number, replace(record)))
                if len(page) > listing.limit:
                    break
            more = page[listing.limit - 1][0] if len(page) > listing.limit else None
            return [record for _, record in page[: listing.limit]], more

    async def count(self, scope: Scope) -> int:
        """How many records are active and unexpired."""
        with self._lock:
            state = self._scope(scope)
            now = max(read_micros(self._clock), state.last_stamp)
            records = (row.record for row in state.rows)
            return sum(1 for r in records if r is not None and r.status == "active" and not expired(r, now))

    async def receipt(self, scope: Scope, operation_id: str) -> Receipt | None:
        """The receipt of an operation."""
        with self._lock:
            stored = self._scope(scope).receipts.get(operation_id)
            return stored.receipt if stored else None

    async def scope_revision(self, scope: Scope) -> int:
        """How many operations were committed in the scope."""
        check_scope(scope)
        with self._lock:
            return self._scope(scope).revision

    async def scopes(self) -> Sequence[Scope]:
        """Every scope that was ever written to, in the order of their keys."""
        with self._lock:
            self._check_open()
            return [self._scopes[key].scope for key in sorted(self._scopes)]
