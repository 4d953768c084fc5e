"""A scope's whole history in and out of a SQL store.

Owns the pages that are read in one snapshot, and the rows that are written in one transaction. Memory stays flat: a
page at a time, and no record is remembered. Does not own the format (``vmem_core/portable.py``), connections or when a
transaction ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from vmem_core import portable
from vmem_core.errors import InvalidRequestError, RecordConflictError
from vmem_core.indexing import token_bytes
from vmem_core.portable import Header, MessagePart, Part, ReceiptPart, RecordPart, RevisionPart
from vmem_core.records import Scope
from vmem_core.stores import _sql, _transaction
from vmem_core.stores._database import Database
from vmem_core.text import text_key
from vmem_core.values import to_micros

_PAGE: Final = 1_000
_ERASED: Final = _sql.ERASED
Block = Sequence[Part]


def read_scope(connection: Database, scope: Scope) -> Iterator[Header | Block]:
    """The header of a scope's export, then its parts in blocks, from one snapshot.

    Args:
        connection: In a transaction that reads one snapshot until the last block is taken.
        scope: Whose memory it is.
    """
    state = _transaction.load_state(connection, scope)
    low, high = state.numbers
    numbers = (low, high)
    records, revisions, receipts = (connection.execute(one, numbers).fetchone()[0] for one in _sql.DUMP_COUNTS)
    messages = connection.execute(_sql.COUNT_MESSAGES, (state.scope_id or 0,)).fetchone()[0]
    yield Header(scope, state.revision, state.last_stamp, records, revisions, receipts, messages)
    if state.scope_id is None:
        return
    for rows in _pages(connection, _sql.DUMP_RECORDS, numbers, low - 1):
        yield [_record_part(row, low) for row in rows]
    for rows in _pages(connection, _sql.DUMP_REVISIONS, numbers, 0):
        yield [_revision_part(row, scope, low) for row in rows]
    for rows in _pages(connection, _sql.DUMP_RECEIPTS, numbers, low - 1):
        yield [_receipt_part(connection, row, scope, low) for row in rows]
    for rows in _pages(connection, _sql.DUMP_MESSAGES, (state.scope_id,), ""):
        yield [MessagePart(row[0]) for row in rows]


def _pages(connection: Database, statement: str, values: Sequence[Any], after: Any) -> Iterator[list[Any]]:
    """The rows of a statement, page by page; the first column of a page's last row is where the next one begins."""
    while rows := connection.execute(statement, (*values, after, _PAGE)).fetchall():
        yield rows
        after = rows[-1][0]


def _record_part(row: Sequence[Any], low: int) -> RecordPart:
    _, record_id, state, changed = row
    return RecordPart(record_id, changed - low if state == _sql.FORGOTTEN else None)


def _revision_part(row: Sequence[Any], scope: Scope, low: int) -> RevisionPart:
    entry, number, record_id, revision, scope_revision, recorded_at, current, body = row
    record = None
    if _sql.is_kept(body):
        record = _sql.load_doubted_record(scope, record_id, revision, scope_revision, recorded_at, body)
    return RevisionPart(number - low, revision, scope_revision, recorded_at, entry == current, record)


def _receipt_part(connection: Database, row: Sequence[Any], scope: Scope, low: int) -> ReceiptPart:
    stored = _sql.load_receipt(scope, row[1], row[0], *row[2:])
    mentions = connection.execute(_sql.MENTIONED, (row[0],)).fetchall()
    return ReceiptPart(stored, tuple(number - low for (number,) in mentions))


class Restore:
    """Writes a scope's history into a store that has none of it, block by block.

    Args:
        connection: In a transaction that holds the scope.
        header: Of the export.
        language: Of the search tokens.

    Raises:
        InvalidRequestError: If the scope was written to before.
    """

    def __init__(self, connection: Database, header: Header, language: str) -> None:
        self._connection, self._header, self._language = connection, header, language
        state = _transaction.load_state(connection, header.scope)
        if state.revision:
            raise portable.not_empty(state.revision)
        self._scope_id = connection.add_scope(header.scope.key) if state.scope_id is None else state.scope_id
        self._low = _sql.scope_numbers(self._scope_id)[0]
        self._records = 0

    def write(self, block: Block) -> None:
        """Write some parts, in the order of the export.

        Raises:
            RecordConflictError: If an id is held or was forgotten in the store.
        """
        self._write_records([part for part in block if isinstance(part, RecordPart)])
        self._write_revisions([part for part in block if isinstance(part, RevisionPart)])
        self._write_receipts([part for part in block if isinstance(part, ReceiptPart)])
        messages = [(self._scope_id, part.message_id) for part in block if isinstance(part, MessagePart)]
        if messages:
            self._connection.execute_many(_sql.INSERT_MESSAGE, messages)

    def finish(self) -> None:
        """Check that every record has its current revision, and set the scope's revision.

        Raises:
            InvalidRequestError: If the export was put together wrongly.
        """
        numbers = (self._low, self._low + self._header.records)
        if self._connection.execute(_sql.COUNT_UNFINISHED, numbers).fetchone()[0]:
            raise InvalidRequestError(
                "has a record without a current revision; nothing was imported: export the scope again", path="lines"
            )
        header = self._header
        row = (header.scope_revision, header.last_stamp, self._records, self._scope_id)
        self._connection.execute(_sql.UPDATE_SCOPE, row)

    def _write_records(self, parts: Sequence[RecordPart]) -> None:
        if not parts:
            return
        wanted = _sql.id_list([part.record_id for part in parts])
        if (held := self._connection.execute(_sql.HOLDERS, (wanted,)).fetchone()) is not None:
            raise RecordConflictError(held[0])
        rows = []
        for number, part in enumerate(parts, self._low + self._records):
            state = _sql.UNFINISHED if part.forgotten_at is None else _sql.FORGOTTEN
            changed = self._low + (part.forgotten_at or 0)
            rows.append((number, part.record_id, 0, 0, changed, state, 0, 0, None, None, b"", b""))
        self._records += len(parts)
        self._connection.execute_many(_sql.INSERT_NUMBERED_RECORD, rows)

    def _write_revisions(self, parts: Sequence[RevisionPart]) -> None:
        if not parts:
            return
        rows = [self._revision_row(part) for part in parts]
        heads = []
        for entry, part in zip(self._connection.add_revisions(rows), parts, strict=True):
            if part.current and part.record is not None:
                text = part.record.text
                head = _transaction.head_row(
                    part.record,
                    entry,
                    self._low + part.scope_revision,
                    text_key(text),
                    token_bytes(text, self._language),
                )
                heads.append((*head, self._low + part.place, part.record.id))
        if heads:
            self._connection.execute_many(_sql.FINISH_RECORD, heads)

    def _revision_row(self, part: RevisionPart) -> tuple[int, int, int, int, str]:
        body = "" if part.record is None else _sql.record_body(part.record)
        return self._low + part.place, part.revision, part.scope_revision, part.recorded_at, body

    def _write_receipts(self, parts: Sequence[ReceiptPart]) -> None:
        rows, mentions = [], []
        for part in parts:
            receipt, request = part.stored.receipt, part.stored.request
            number = self._low + receipt.scope_revision
            digest = _ERASED if receipt.redacted else request.salt + request.digest
            committed = to_micros(receipt.committed_at)
            body = _sql.receipt_body(receipt)
            rows.append((number, self._scope_id, receipt.operation_id, committed, int(receipt.redacted), digest, body))
            mentions += [(number, self._low + place) for place in part.mentions]
        if rows:
            self._connection.execute_many(_sql.RESTORE_RECEIPT, rows)
        if mentions:
            self._connection.execute_many(_sql.INSERT_MENTION, mentions)
