"""What happens inside one transaction of a SQL store: load, decide, apply; and the reads that need no index.

Owns the order of the statements. Does not own the connection, when a transaction begins or ends (``sqlite.py``),
or any rule (``operations.py``). Statements that do not need each other's rows are sent before any row is asked
for, so that a pipelined connection takes one round trip for them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vmem_core.clock import Clock, read_micros
from vmem_core.indexing import KIND_CODES, ORIGIN_CODES, expiry_micros, state_code, token_bytes
from vmem_core.operations import Operation
from vmem_core.plan import Head, Kept, Outcome, Plan, Reads, Snapshot, StoredReceipt, Write, Written
from vmem_core.records import Record, Scope
from vmem_core.results import Generation, Receipt
from vmem_core.stores import _sql
from vmem_core.stores._database import Database, Rows
from vmem_core.text import text_key
from vmem_core.tokens import TOKENIZER_VERSION, facets
from vmem_core.values import from_micros, to_micros

_MANY: Final = 16  # new records from which on one statement for all costs less than to pipeline one for each


@dataclass(slots=True)
class ScopeState:
    """A scope's row, the active generation and one receipt, as one statement loads them."""

    scope_id: int | None
    revision: int
    last_stamp: int
    records: int
    generation: Generation | None
    epoch: int
    stored: StoredReceipt | None
    clock: int | None  # the database's time, if it stamps itself

    @property
    def numbers(self) -> tuple[int, int]:
        """The range of its rows' numbers; an empty one for a scope that was never written."""
        return (1, 0) if self.scope_id is None else _sql.scope_numbers(self.scope_id)


def load_state(connection: Database, scope: Scope, operation_id: str = "") -> ScopeState:
    """Read a scope's row, the active generation and one receipt, in one statement."""
    return _state(connection.execute(_sql.LOAD, (scope.key, operation_id)).fetchone(), scope, operation_id)


def _state(row: Sequence[Any], scope: Scope, operation_id: str) -> ScopeState:
    generation = None if row[4] is None else _generation(row[4], row[5], row[6])
    stored = None if row[8] is None else _sql.load_receipt(scope, operation_id, *row[8:13])
    return ScopeState(row[0], row[1] or 0, row[2] or 0, row[3] or 0, generation, row[7] or 0, stored, row[13])


@functools.lru_cache(maxsize=64)
def _generation(number: int, model_id: str, dims: int) -> Generation:
    return Generation(number, model_id, dims, "active")


def active_generation(connection: Database) -> Generation | None:
    """The active generation, or None if no vector was ever stored."""
    row = connection.execute(_sql.ACTIVE_GENERATION).fetchone()
    return None if row is None else _generation(row[0], row[1], row[2])


@dataclass(slots=True)
class Loaded:
    """A snapshot with what only the statements need: the scope's row and the numbers of its records."""

    snapshot: Snapshot
    state: ScopeState
    numbers: dict[str, int]


def load(connection: Database, operation: Operation, clock: Clock) -> Loaded:
    """What an operation's decision needs. The clock is read here: after the lock is held."""
    reads = operation.reads()
    loading = connection.execute(_sql.LOAD, (operation.scope.key, operation.operation_id))
    asked = _ask_heads(connection, reads)
    state = _state(loading.fetchone(), operation.scope, operation.operation_id)
    now = time_of(state, clock)
    numbers: dict[str, int] = {}
    heads = _heads(connection, operation.scope, reads, state, numbers, asked)
    mentioned = _mentioned(connection, operation.scope, state, numbers)
    snapshot = Snapshot(
        scope_revision=state.revision,
        now=from_micros(now),
        stored=state.stored,
        heads=heads | mentioned,
        equals={key: equals(connection, operation.scope, key, state, now, numbers) for key in reads.equal_texts},
        generation=state.generation,
        mentions=tuple(mentioned),
        processed=processed(connection, state, reads.message_ids),
    )
    return Loaded(snapshot, state, numbers)


def processed(connection: Database, state: ScopeState, message_ids: Sequence[str]) -> frozenset[str]:
    """Those of the messages that an extraction of the scope has read."""
    if not message_ids or state.scope_id is None:
        return frozenset()
    rows = connection.execute(_sql.PROCESSED, (state.scope_id, _sql.id_list(message_ids)))
    return frozenset(row[0] for row in rows)


def time_of(state: ScopeState, clock: Clock) -> int:
    """Now, in microseconds since 1970: by the database's clock or the store's, never before the last stamp."""
    return max(read_micros(clock) if state.clock is None else state.clock, state.last_stamp)


def _ask_heads(connection: Database, reads: Reads) -> Rows | None:
    """Send what does not need the scope's row."""
    if not reads.record_ids or reads.whole_scope:
        return None
    if len(reads.record_ids) == 1:
        return connection.execute(_sql.HEAD_BY_ID, reads.record_ids)
    return connection.execute(_sql.HEADS_BY_ID, (_sql.id_list(reads.record_ids),))


def _heads(
    connection: Database,
    scope: Scope,
    reads: Reads,
    state: ScopeState,
    numbers: dict[str, int],
    asked: Rows | None = None,
) -> dict[str, Head]:
    if reads.whole_scope:
        asked = connection.execute(_sql.HEADS_OF_SCOPE, state.numbers)
    asked = asked or _ask_heads(connection, reads)
    if asked is None:
        return {}
    rows = asked.fetchall()
    written = _written(connection, rows, state) if reads.revisions else {}
    return {row[1]: _head(scope, row, state, written.get(row[0], ()), numbers) for row in rows}


def _mentioned(connection: Database, scope: Scope, state: ScopeState, numbers: dict[str, int]) -> dict[str, Head]:
    if state.stored is None or state.scope_id is None:
        return {}
    receipt = state.scope_id << 32 | state.stored.receipt.scope_revision
    found = [row[0] for row in connection.execute(_sql.MENTIONED, (receipt,))]
    rows = connection.execute(_sql.HEADS_BY_NUMBER, (_sql.id_list(found),)).fetchall() if found else []
    return {row[1]: _head(scope, row, state, (), numbers) for row in rows}


def _head(
    scope: Scope, row: Sequence[Any], state: ScopeState, written: Sequence[Written], numbers: dict[str, int]
) -> Head:
    number, record_id, revision, code, scope_revision, recorded_at, body = row
    if state.scope_id is None or number >> 32 != state.scope_id:
        return Head(record_id, owned=False)
    numbers[record_id] = number
    record = None
    if code != _sql.FORGOTTEN and body is not None:
        record = _sql.load_record(scope, record_id, revision, scope_revision, recorded_at, body)
    return Head(record_id, True, revision, record, code == _sql.FORGOTTEN, tuple(written))


def _written(connection: Database, rows: Sequence[Sequence[Any]], state: ScopeState) -> Mapping[int, list[Written]]:
    """All revisions of the scope's own heads among ``rows``, by number."""
    own = [row[0] for row in rows if state.scope_id is not None and row[0] >> 32 == state.scope_id]
    written: dict[int, list[Written]] = {number: [] for number in own}
    bounds = (min(own), max(own)) if own else (1, 0)
    for number, revision, scope_revision, kept in connection.execute(_sql.WRITTEN_OF_SCOPE, bounds):
        written[number].append(Written(revision, scope_revision, bool(kept)))
    return written


def equals(
    connection: Database,
    scope: Scope,
    key: int,
    state: ScopeState,
    now: int,
    numbers: dict[str, int] | None = None,
) -> tuple[Record, ...]:
    """Active, unexpired records of the scope whose text may be the one with this key, oldest first.

    Args:
        connection: In a transaction.
        scope: Whose memory it is.
        key: The ``text_key``.
        state: The scope's row.
        now: Expiry is judged at this instant, microseconds since 1970.
        numbers: Takes the number of each record found.
    """
    rows = connection.execute(_sql.EQUAL_TEXTS, (key, *state.numbers, now)).fetchall()
    if numbers is not None:
        numbers.update((row[1], row[0]) for row in rows)
    return tuple(_record(scope, row) for row in rows)


def _record(scope: Scope, row: Sequence[Any]) -> Record:
    """A record from the columns of a head."""
    return _sql.load_record(scope, row[1], row[2], *row[4:7])


def apply(connection: Database, plan: Plan, scope: Scope, loaded: Loaded, tokens: Mapping[str, bytes]) -> None:
    """Make a plan durable, but for the commit."""
    state = loaded.state
    if state.scope_id is None:
        state.scope_id = connection.add_scope(scope.key)
    assert plan.request is not None
    if plan.starts is not None:
        state.generation = _start_generation(connection, *plan.starts)
    receipt = plan.receipt
    changed = state.scope_id << 32 | receipt.scope_revision
    if len(plan.writes) >= _MANY and all(write.action == "create" for write in plan.writes):
        create_records(connection, [(write, changed) for write in plan.writes], state, tokens, loaded.numbers)
    else:
        for write in plan.writes:
            _write(connection, write, loaded, changed, tokens)
    _forget(connection, plan, loaded, changed)
    committed = to_micros(receipt.committed_at)
    request = plan.request.salt + plan.request.digest
    row = (changed, state.scope_id, receipt.operation_id, committed, request, _sql.receipt_body(receipt))
    connection.execute(_sql.INSERT_RECEIPT, row)
    for message_id in plan.messages:
        connection.execute(_sql.INSERT_MESSAGE, (state.scope_id, message_id))
    for record_id in plan.mentions:
        connection.execute(_sql.INSERT_MENTION, (changed, loaded.numbers[record_id]))
    connection.execute(_sql.UPDATE_SCOPE, (receipt.scope_revision, committed, state.records, state.scope_id))


def _start_generation(connection: Database, model: str, dims: int) -> Generation:
    number = connection.execute(_sql.NEXT_GENERATION).fetchone()[0]
    connection.execute(_sql.INSERT_GENERATION, (number, model, dims))
    connection.make_vectors(number, dims)
    return Generation(number, model, dims, "active")


def create_records(
    connection: Database,
    writes: Sequence[tuple[Write, int]],
    state: ScopeState,
    tokens: Mapping[str, bytes],
    numbers: dict[str, int],
) -> None:
    """Write new records of one scope, a statement for all of them.

    Args:
        connection: In a transaction.
        writes: Each with its place in the change feed: ``scope_id << 32 | scope revision``.
        state: The scope's row; its count of records is raised.
        tokens: The search tokens of every text.
        numbers: Takes the number of each record.
    """
    assert state.scope_id is not None
    first = state.scope_id << 32 | state.records
    state.records += len(writes)
    bodies = [_revision_row(first + place, write.record) for place, (write, _) in enumerate(writes)]
    rows, vectors = [], []
    for place, (entry, (write, changed)) in enumerate(zip(connection.add_revisions(bodies), writes, strict=True)):
        record, number = write.record, first + place
        numbers[record.id] = number
        key, hashes = text_key(record.text), tokens[record.text]
        rows.append((number, record.id, *head_row(record, entry, changed, key, hashes)))
        if write.vector is not None:
            vectors.append((number, record.revision, record.revision, write.vector))
    connection.execute_many(_sql.INSERT_NUMBERED_RECORD, rows)
    if vectors and state.generation is not None:
        connection.execute_many(_sql.put_vector(state.generation.number, text_changed=True), vectors)


def _revision_row(number: int, record: Record) -> tuple[int, int, int, int, str]:
    recorded_at = to_micros(record.recorded_at)
    return number, record.revision, record.scope_revision, recorded_at, _sql.record_body(record)


def head_row(record: Record, entry: int, changed: int, key: int | None, tokens: bytes | None) -> tuple[Any, ...]:
    """What the row of a record keeps of its current revision, after its number and id."""
    return (
        entry,
        record.revision,
        changed,
        state_code(record),
        KIND_CODES[record.kind],
        ORIGIN_CODES[record.origin],
        expiry_micros(record),
        key,
        tokens,
        facets(record.metadata) if record.metadata else b"",
    )


def _write(connection: Database, write: Write, loaded: Loaded, changed: int, tokens: Mapping[str, bytes]) -> None:
    record, state = write.record, loaded.state
    if write.action == "create":
        assert state.scope_id is not None
        loaded.numbers[record.id] = state.scope_id << 32 | state.records
        state.records += 1
    number = loaded.numbers[record.id]
    entry = connection.add_revision(_revision_row(number, record))
    key, hashes = (text_key(record.text), tokens[record.text]) if write.text_changed else (None, None)
    row = head_row(record, entry, changed, key, hashes)
    if write.action == "create":
        connection.execute(_sql.INSERT_RECORD, (number, record.id, *row))
    else:
        if write.text_changed and state.generation is not None:
            connection.execute(_sql.keep_past_vector(state.generation.number), (number,))
        connection.execute(_sql.UPDATE_RECORD, (*row, number))
    if state.generation is not None:
        _write_vector(connection, write, number, state.generation.number)


def _write_vector(connection: Database, write: Write, number: int, generation: int) -> None:
    """A changed text never keeps the old vector; an unchanged one does, now bound to the new revision too."""
    table, revision = _sql.vectors_table(generation), write.record.revision
    if write.vector is not None:
        statement = _sql.put_vector(generation, text_changed=write.text_changed)
        connection.execute(statement, (number, revision, revision, write.vector))
    elif write.text_changed:
        if write.action != "create":
            connection.execute(f"delete from {table} where number = ?", (number,))
    else:
        connection.execute(f"update {table} set revision = ? where number = ?", (revision, number))


def _forget(connection: Database, plan: Plan, loaded: Loaded, changed: int) -> None:
    scope_id, redacts = loaded.state.scope_id, set(plan.redacts)
    assert scope_id is not None
    for record_id in plan.forgets:
        number = loaded.numbers[record_id]
        connection.execute(_sql.OVERWRITE_TEXT, (number,))
        for generation in connection.execute("select generation from vmem_generations where state <> 'retired'"):
            for statement in _sql.forget_vectors(generation[0]):
                connection.execute(statement, (number,))
        connection.execute(_sql.EMPTY_RECORD, (changed, number))
        redacts.update(row[0] - (scope_id << 32) for row in connection.execute(_sql.MENTIONS_OF, (number,)))
        connection.execute(_sql.DELETE_MENTIONS, (number,))
    for revision in sorted(redacts):
        connection.execute(_sql.REDACT_RECEIPT, (scope_id << 32 | revision,))


def outcome(connection: Database, plan: Plan) -> Outcome:
    """What the caller is told of a plan."""
    if plan.replayed:
        records = tuple(present(connection, plan.receipt))
    else:
        records = tuple(write.record for write in plan.writes)
    return Outcome(plan.receipt, plan.replayed, records, plan.forgotten, plan.present)


def present(connection: Database, receipt: Receipt) -> Iterable[Record]:
    """The revisions that an operation wrote and that are still there."""
    for change in receipt.changes:
        row = connection.execute(_sql.ONE_REVISION, (change.revision, change.record_id)).fetchone()
        if row is not None and change.action != "forget" and _sql.is_kept(row[5]):
            yield _sql.load_record(receipt.scope, *row[1:6])


def get(connection: Database, scope: Scope, record_id: str, clock: Clock) -> Record | None:
    """The current revision, unless expired, forgotten, foreign or unknown."""
    state = load_state(connection, scope)
    record = _own_head(connection, scope, record_id, state).record
    now = time_of(state, clock)
    expired = record is not None and record.expires_at is not None and to_micros(record.expires_at) <= now
    return None if expired else record


def _own_head(connection: Database, scope: Scope, record_id: str, state: ScopeState) -> Head:
    heads = _heads(connection, scope, Reads(record_ids=(record_id,)), state, {})
    return heads.get(record_id, Head(record_id, owned=False))


def history(connection: Database, scope: Scope, record_id: str) -> list[Record]:
    """All kept revisions, oldest first."""
    numbers: dict[str, int] = {}
    head = _heads(connection, scope, Reads(record_ids=(record_id,)), load_state(connection, scope), numbers)
    if record_id not in numbers or head[record_id].forgotten:
        return []
    rows = connection.execute(_sql.REVISIONS_OF, (numbers[record_id],))
    return [_sql.load_record(scope, record_id, *row[1:5]) for row in rows if _sql.is_kept(row[4])]


def replay(connection: Database, operation: Operation, clock: Clock) -> Outcome | None:
    """What the operation would answer if it was committed before; None if it was not."""
    loaded = load(connection, operation, clock)
    if loaded.snapshot.stored is None:
        return None
    return outcome(connection, operation.decide(loaded.snapshot))


def scopes(connection: Database) -> list[Scope]:
    """Every scope that was ever written to, in the order of their keys."""
    # Sorted here: a database's own order of texts depends on its locale.
    return [_sql.load_scope(key) for key in sorted(row[0] for row in connection.execute(_sql.SCOPES))]


def revisions(connection: Database, scope: Scope, wanted: Sequence[tuple[str, int]]) -> list[Kept]:
    """What is left of each wanted (record id, revision), in order."""
    state = load_state(connection, scope)
    found = []
    for record_id, revision in wanted:
        numbers: dict[str, int] = {}
        heads = _heads(connection, scope, Reads(record_ids=(record_id,)), state, numbers)
        if record_id not in numbers or heads[record_id].forgotten:
            found.append(Kept(None, gone=True))
            continue
        row = connection.execute(_sql.ONE_REVISION, (revision, record_id)).fetchone()
        kept = row is not None and _sql.is_kept(row[5])
        found.append(Kept(_sql.load_record(scope, *row[1:6]) if kept else None, gone=False))
    return found


def tokenize_again(connection: Database, language: str) -> None:
    """Make all search tokens anew, because the tokenizer's rules have changed since the store was written."""
    rows = connection.execute(_sql.CURRENT_BODIES).fetchall()
    for number, body in rows:
        connection.execute(_sql.SET_TOKENS, (token_bytes(_sql.body_text(body), language), number))
    connection.execute(_sql.NEXT_EPOCH)
    connection.execute(_sql.SET_SETTING, (str(TOKENIZER_VERSION), "tokenizer"))
