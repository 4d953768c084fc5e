"""What an owner does with the in-memory store now and then: prune it, take a scope out of it, put one in.

Owns these verbs, and what they do to rows. Does not own what may go (``vmem_core/retention.py``) or the rows
(``_memory_rows.py``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime

from vmem_core import tracing
from vmem_core.clock import Clock, read_micros
from vmem_core.errors import RecordConflictError
from vmem_core.logs import log
from vmem_core.portable import Header, MessagePart, Part, ReceiptPart, RecordPart, RevisionPart, not_empty
from vmem_core.records import Scope, check_scope
from vmem_core.retention import PastRevision, check_cutoff, is_old, is_prunable, warning
from vmem_core.stores._memory_rows import MemoryRow, RevisionRow, ScopeRow
from vmem_core.text import text_key
from vmem_core.values import to_micros


class MemoryUpkeep:
    """The verbs of upkeep, on the dicts of the in-memory store."""

    _clock: Clock
    _entries: int
    _language: str
    _lock: threading.Lock
    _rows: dict[str, MemoryRow]
    _scopes: dict[str, ScopeRow]

    def _check_open(self) -> None:
        raise NotImplementedError

    async def prune_history(self, older_than: datetime, scope: Scope | None = None, *, dry_run: bool = False) -> int:
        """Delete past revisions, recorded before a cutoff, of records that are retracted or expired."""
        cutoff = check_cutoff(older_than)
        wanted = None if scope is None else check_scope(scope).key
        with tracing.span("prune_history") as span, self._lock:
            self._check_open()
            count = 0
            for key, state in self._scopes.items():
                if wanted in (None, key):
                    now = max(read_micros(self._clock), state.last_stamp)
                    count += prune_rows(state, cutoff, now, dry_run=dry_run)
            span.record(records=count)
            return count

    async def prune_operations(self, older_than: datetime, *, dry_run: bool = False) -> int:
        """Delete receipts committed before a cutoff; their operation ids apply again, which the log warns of."""
        cutoff = check_cutoff(older_than)
        with tracing.span("prune_operations") as span, self._lock:
            self._check_open()
            count = sum(prune_receipts(state, cutoff, dry_run=dry_run) for state in self._scopes.values())
            span.record(records=count)
        if count and not dry_run:
            log().warning("%s", warning(count, older_than))
        return count

    async def dump(self, scope: Scope) -> AsyncGenerator[Header | Sequence[Part], None]:
        """A scope's whole history from one moment: its header, then its parts in order."""
        check_scope(scope)
        with self._lock:
            self._check_open()
            state = self._scopes.get(scope.key) or ScopeRow(scope)
            parts = list(_parts(state))
        counts = Counter(type(part) for part in parts)
        kinds = (RecordPart, RevisionPart, ReceiptPart, MessagePart)
        yield Header(scope, state.revision, state.last_stamp, *(counts[kind] for kind in kinds))
        yield parts

    async def restore(self, header: Header, blocks: AsyncIterator[Sequence[Part]]) -> None:
        """Write a dumped scope at once, when ``blocks`` has ended."""
        from vmem_core.indexing import token_bytes

        parts = [part for block in [block async for block in blocks] for part in block]
        texts = {part.record.text for part in parts if isinstance(part, RevisionPart) and part.record is not None}
        tokens = {text: token_bytes(text, self._language) for text in texts}
        with self._lock:
            self._check_open()
            if (there := self._scopes.get(header.scope.key)) is not None:
                raise not_empty(there.revision)
            made = ScopeRow(header.scope, header.scope_revision, header.last_stamp)
            for part in parts:
                if isinstance(part, RecordPart) and part.record_id in self._rows:
                    raise RecordConflictError(part.record_id)
                self._entries += isinstance(part, RevisionPart)
                _restore_part(made, part, self._entries, tokens)
            self._rows.update((row.record_id, row) for row in made.rows)
            if made.revision:
                self._scopes[header.scope.key] = made


def _parts(state: ScopeRow) -> Iterator[Part]:
    """All of a scope, in the order of an export."""
    for row in state.rows:
        yield RecordPart(row.record_id, row.forgotten_at if row.forgotten else None)
    written = [(one, row, number) for row in state.rows for number, one in enumerate(row.revisions, 1)]
    for one, row, number in sorted(written, key=lambda item: item[0].entry):
        current = number == len(row.revisions)
        yield RevisionPart(row.number, number, one.scope_revision, one.recorded_at, current, one.record)
    numbers = {row.record_id: row.number for row in state.rows}
    for stored in sorted(state.receipts.values(), key=lambda stored: stored.receipt.scope_revision):
        met = state.mentions.get(stored.receipt.operation_id, ())
        alive = sorted(numbers[record_id] for record_id in met if not state.rows[numbers[record_id]].forgotten)
        yield ReceiptPart(stored, tuple(alive))
    for message_id in sorted(state.messages):
        yield MessagePart(message_id)


def _restore_part(scope: ScopeRow, part: Part, entry: int, tokens: Mapping[str, bytes]) -> None:
    """Write one part into a scope that nobody else sees yet."""
    if isinstance(part, RecordPart):
        row = MemoryRow(len(scope.rows), part.record_id, scope, forgotten=part.forgotten_at is not None)
        row.forgotten_at = part.forgotten_at or 0
        scope.rows.append(row)
        scope.changed.add(row.number)
    elif isinstance(part, RevisionPart):
        row = scope.rows[part.place]
        row.revisions.append(RevisionRow(entry, part.record, part.scope_revision, part.recorded_at))
        if part.current and part.record is not None:
            row.key, row.tokens = text_key(part.record.text), tokens[part.record.text]
            scope.by_key[row.key].add(row.number)
    elif isinstance(part, ReceiptPart):
        receipt = part.stored.receipt
        scope.receipts[receipt.operation_id] = part.stored
        if part.mentions:
            scope.mentions[receipt.operation_id] = tuple(scope.rows[place].record_id for place in part.mentions)
            for place in part.mentions:
                scope.rows[place].mentioned_by.append(receipt.scope_revision)
    else:
        scope.messages.add(part.message_id)


def prune_rows(scope: ScopeRow, cutoff: int, now: int, *, dry_run: bool) -> int:
    """Prune past revisions of a scope's records; returns how many there are."""
    count = 0
    for row in scope.rows:
        record = row.record
        if record is None:
            continue
        expires = None if record.expires_at is None else to_micros(record.expires_at)
        active, last = record.status == "active", 0
        for number, one in enumerate(row.revisions, 1):
            past = PastRevision(number, one.recorded_at, record.revision, active, expires)
            if one.record is not None and is_prunable(past, cutoff, now):
                count, last = count + 1, number
                if not dry_run:
                    row.revisions[number - 1] = RevisionRow(one.entry, None, one.scope_revision, one.recorded_at)
        if not dry_run:
            row.past_vectors = [vector for vector in row.past_vectors if vector[1] > last]
    return count


def prune_receipts(scope: ScopeRow, cutoff: int, *, dry_run: bool) -> int:
    """Delete old receipts of a scope; returns how many there are."""
    old = [name for name, stored in scope.receipts.items() if is_old(to_micros(stored.receipt.committed_at), cutoff)]
    for name in () if dry_run else old:
        del scope.receipts[name]
        scope.mentions.pop(name, None)
    return len(old)
