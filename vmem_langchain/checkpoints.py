"""Forgotten records in LangGraph's checkpoints: rewritten where we can, reported where we cannot.

Owns how each checkpointer is read and rewritten. Does not own what counts as a copy (``scrubbing.py``). Imports
LangGraph nowhere: a checkpointer that is here has loaded it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vmem_core import run_sync
from vmem_langchain.scrubbing import Scrubber

_BUSY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CheckpointCopy:
    """A place that still holds a text.

    Args:
        checkpoint_ns: The graph inside the run; empty: the run itself.
        checkpoint_id: The checkpoint; None where a value is shared by several.
        place: What holds it, such as ``"channel messages"``, ``"write messages"`` or ``"metadata"``.
        record_ids: The records it is of; empty: it is one of the texts given.
    """

    checkpoint_ns: str
    checkpoint_id: str | None
    place: str
    record_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RedactionReport:
    """What a redaction did to a thread. It holds no text.

    Args:
        thread_id: The thread.
        rewrites: Whether this kind of checkpointer is rewritten; else the copies are only reported.
        checkpoints: How many it has.
        rewritten: How many stored values were rewritten.
        copies: What still holds a copy.
        scrubbed: Whether the old bytes are gone as well, from the file of SQLite and its log. If somebody was reading
            meanwhile they are not: vacuum the file later.
    """

    thread_id: str
    rewrites: bool
    checkpoints: int = 0
    rewritten: int = 0
    copies: tuple[CheckpointCopy, ...] = ()
    scrubbed: bool = False

    @property
    def complete(self) -> bool:
        """Whether no copy was left."""
        return not self.copies


def redact_thread(
    checkpointer: Any, thread_id: str, *, record_ids: Collection[str], texts: Collection[str] = (), vacuum: bool = True
) -> RedactionReport:
    """Take forgotten records out of a thread's checkpoints. See :func:`aredact_thread`."""
    scrubber = Scrubber(record_ids, texts)
    if _is_a(checkpointer, "langgraph.checkpoint.memory", "InMemorySaver"):
        return _redact_memory(checkpointer, thread_id, scrubber)
    if _is_a(checkpointer, "langgraph.checkpoint.sqlite", "SqliteSaver"):
        return _redact_sqlite(checkpointer, thread_id, scrubber, vacuum)
    if _is_a(checkpointer, "langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver"):
        return run_sync(_aredact_sqlite(checkpointer, thread_id, scrubber, vacuum))
    return _report(thread_id, list(checkpointer.list(_config(thread_id))), scrubber)


async def aredact_thread(
    checkpointer: Any, thread_id: str, *, record_ids: Collection[str], texts: Collection[str] = (), vacuum: bool = True
) -> RedactionReport:
    """Take forgotten records out of a thread's checkpoints.

    Found are answers of ``memory_recall``, calls of ``memory_remember`` and ``memory_revise`` whose answer names a
    record, documents of the retriever, records as a context shows them to a model, and the same texts word for word
    anywhere else, also where they are JSON inside of strings, in all checkpoints and pending writes. They become
    ``[forgotten]``. Ids and everything else stay as they are, so an interrupted run can be resumed. Not found are other
    words for the same thing, such as what the user said: give ``texts``, or delete the thread.

    ``InMemorySaver``, ``SqliteSaver`` and ``AsyncSqliteSaver`` are rewritten, SQLite's in one transaction. For any
    other checkpointer the report says what holds a copy. Not reached are backups, traces, and a run that is under way:
    what it holds in memory it writes again, so redact between runs.

    Args:
        checkpointer: Of the graph.
        thread_id: The conversation.
        record_ids: The forgotten records.
        texts: Texts to be taken out as well.
        vacuum: Whether SQLite's file is rewritten when something was found, so that no old page keeps a text.

    Raises:
        InvalidRequestError: For a wrong argument. What the checkpointer raises reaches the caller as it is.
    """
    scrubber = Scrubber(record_ids, texts)
    if _is_a(checkpointer, "langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver"):
        return await _aredact_sqlite(checkpointer, thread_id, scrubber, vacuum)
    if _is_a(checkpointer, "langgraph.checkpoint.memory", "InMemorySaver"):
        return await asyncio.to_thread(_redact_memory, checkpointer, thread_id, scrubber)
    if _is_a(checkpointer, "langgraph.checkpoint.sqlite", "SqliteSaver"):
        return await asyncio.to_thread(_redact_sqlite, checkpointer, thread_id, scrubber, vacuum)
    try:
        found = [one async for one in checkpointer.alist(_config(thread_id))]
    except NotImplementedError:
        found = await asyncio.to_thread(lambda: list(checkpointer.list(_config(thread_id))))
    return _report(thread_id, found, scrubber)


def _is_a(checkpointer: object, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(checkpointer, getattr(loaded, name, ()))


def _config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


# --- one stored value ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """What was done so far."""

    scrubber: Scrubber
    serde: Any
    rewritten: int = 0
    copies: list[CheckpointCopy] = field(default_factory=list)

    def learn(self, stored: tuple[str, bytes]) -> None:
        if stored[0] != "empty":
            self.scrubber.learn(self.serde.loads_typed(stored))

    def scrub(self, stored: tuple[str, bytes], ns: str, checkpoint_id: str | None, place: str) -> Any:
        """A stored value without the texts; None: as it is."""
        if stored[0] == "empty":
            return None
        value = self.serde.loads_typed(stored)
        clean = self.scrubber.scrub(value)
        made = stored if clean is value else self.serde.dumps_typed(clean)
        # What cannot be rebuilt, such as an object of the host's own, still holds it: its bytes tell.
        left = self.scrubber.found_in(clean) | self.scrubber.found_in(made[1])
        if left:
            self.copies.append(CheckpointCopy(ns, checkpoint_id, place, _named(left)))
        if clean is value:
            return None
        self.rewritten += 1
        return made

    def report(self, thread_id: str, checkpoints: int, *, scrubbed: bool) -> RedactionReport:
        return RedactionReport(thread_id, True, checkpoints, self.rewritten, tuple(self.copies), scrubbed)


def _named(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(one for one in found if one))


# --- InMemorySaver ------------------------------------------------------------------------------------------------


def _redact_memory(saver: Any, thread_id: str, scrubber: Scrubber) -> RedactionReport:
    tally = _Tally(scrubber, saver.serde)
    blobs = sorted(key for key in list(saver.blobs) if key[0] == thread_id)
    writes = [(key, inner) for key, kept in list(saver.writes.items()) if key[0] == thread_id for inner in list(kept)]
    checkpoints = [(ns, one) for ns, kept in list((saver.storage.get(thread_id) or {}).items()) for one in sorted(kept)]
    for blob in blobs:
        tally.learn(saver.blobs[blob])
    for key, inner in writes:
        tally.learn(saver.writes[key][inner][2])
    for blob in blobs:
        made = tally.scrub(saver.blobs[blob], blob[1], None, f"channel {blob[2]}")
        if made is not None:
            saver.blobs[blob] = made
    for key, inner in writes:
        task_id, channel, stored, path = saver.writes[key][inner]
        made = tally.scrub(stored, key[1], key[2], f"write {channel}")
        if made is not None:
            saver.writes[key][inner] = (task_id, channel, made, path)
    for ns, checkpoint_id in checkpoints:
        checkpoint, metadata, parent = saver.storage[thread_id][ns][checkpoint_id]
        new = tally.scrub(checkpoint, ns, checkpoint_id, "checkpoint")
        told = tally.scrub(metadata, ns, checkpoint_id, "metadata")
        if new is not None or told is not None:
            saver.storage[thread_id][ns][checkpoint_id] = (new or checkpoint, told or metadata, parent)
    return tally.report(thread_id, len(checkpoints), scrubbed=True)


# --- SQLite -------------------------------------------------------------------------------------------------------

Statement: TypeAlias = tuple[str, tuple[Any, ...]]
_CHECKPOINTS = "SELECT rowid FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id"
_WRITES = "SELECT rowid FROM writes WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id, task_id, idx"
_READ_CHECKPOINT = "SELECT checkpoint_ns, checkpoint_id, type, checkpoint, metadata FROM checkpoints WHERE rowid = ?"
_READ_WRITE = "SELECT checkpoint_ns, checkpoint_id, type, value, channel FROM writes WHERE rowid = ?"


def _rewrite(thread_id: str, tally: _Tally) -> Generator[Statement, list[Any], int]:
    """The statements of one transaction: each is answered with its rows. Returns how many checkpoints there are."""
    yield "BEGIN IMMEDIATE", ()
    checkpoints = [row[0] for row in (yield _CHECKPOINTS, (str(thread_id),))]
    writes = [row[0] for row in (yield _WRITES, (str(thread_id),))]
    for number in checkpoints:
        [(_, _, kind, stored, _)] = yield _READ_CHECKPOINT, (number,)
        tally.learn((kind, stored))
    for number in writes:
        [(_, _, kind, stored, _)] = yield _READ_WRITE, (number,)
        tally.learn((kind, stored))
    for number in checkpoints:
        [(ns, checkpoint_id, kind, stored, metadata)] = yield _READ_CHECKPOINT, (number,)
        made = tally.scrub((kind, stored), ns, checkpoint_id, "checkpoint")
        if made is not None:
            yield "UPDATE checkpoints SET type = ?, checkpoint = ? WHERE rowid = ?", (*made, number)
        told = _scrub_metadata(metadata, tally)
        if told is not None:
            yield "UPDATE checkpoints SET metadata = ? WHERE rowid = ?", (told, number)
    for number in writes:
        [(ns, checkpoint_id, kind, stored, channel)] = yield _READ_WRITE, (number,)
        made = tally.scrub((kind, stored), ns, checkpoint_id, f"write {channel}")
        if made is not None:
            yield "UPDATE writes SET type = ?, value = ? WHERE rowid = ?", (*made, number)
    yield "COMMIT", ()
    return len(checkpoints)


def _scrub_metadata(metadata: bytes | str | None, tally: _Tally) -> bytes | None:
    value = json.loads(metadata) if metadata else None
    clean = tally.scrubber.scrub(value)
    if clean is value:
        return None
    tally.rewritten += 1
    return json.dumps(clean, ensure_ascii=False).encode("utf-8", "ignore")


def _redact_sqlite(saver: Any, thread_id: str, scrubber: Scrubber, vacuum: bool) -> RedactionReport:
    with saver.lock:
        saver.setup()
        path = _path_of(saver.conn.execute("PRAGMA database_list").fetchall())
        if not path:
            return _redact_connection(saver.conn, saver.serde, thread_id, scrubber, vacuum)
    return _redact_file(path, saver.serde, thread_id, scrubber, vacuum)


async def _aredact_sqlite(saver: Any, thread_id: str, scrubber: Scrubber, vacuum: bool) -> RedactionReport:
    await saver.setup()
    path = _path_of(await saver.conn.execute_fetchall("PRAGMA database_list"))
    if path:
        return await asyncio.to_thread(_redact_file, path, saver.serde, thread_id, scrubber, vacuum)
    tally = _Tally(scrubber, saver.serde)
    async with saver.lock:
        count = await _adrive(saver.conn, _rewrite(thread_id, tally))
    return tally.report(thread_id, count, scrubbed=True)  # a database in memory has no file


def _path_of(databases: Iterable[Any]) -> str:
    return next((str(path or "") for _, name, path in databases if name == "main"), "")


def _redact_file(path: str, serde: Any, thread_id: str, scrubber: Scrubber, vacuum: bool) -> RedactionReport:
    # A connection of our own: the saver's may be in the middle of something, and belongs to another thread or loop.
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
        return _redact_connection(connection, serde, thread_id, scrubber, vacuum)


def _redact_connection(
    connection: sqlite3.Connection, serde: Any, thread_id: str, scrubber: Scrubber, vacuum: bool
) -> RedactionReport:
    tally = _Tally(scrubber, serde)
    with _plain(connection):
        count = _drive(connection, _rewrite(thread_id, tally))
        scrubbed = not tally.rewritten or _scrub_file(connection, vacuum)
    return tally.report(thread_id, count, scrubbed=scrubbed)


@contextmanager
def _plain(connection: sqlite3.Connection) -> Iterator[None]:
    """Without transactions that Python begins by itself, and with freed pages overwritten."""
    level, (secure,) = connection.isolation_level, connection.execute("PRAGMA secure_delete").fetchone()
    connection.isolation_level = None
    connection.execute("PRAGMA secure_delete = ON")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA secure_delete = {int(secure)}")
        connection.isolation_level = level


def _drive(connection: sqlite3.Connection, statements: Generator[Statement, list[Any], int]) -> int:
    rows: Any = None
    try:
        while True:
            rows = connection.execute(*statements.send(rows)).fetchall()
    except StopIteration as end:
        return int(end.value)
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise


async def _adrive(connection: Any, statements: Generator[Statement, list[Any], int]) -> int:
    rows: Any = None
    try:
        while True:
            rows = list(await connection.execute_fetchall(*statements.send(rows)))
    except StopIteration as end:
        return int(end.value)
    except BaseException:
        if connection.in_transaction:
            await connection.rollback()
        raise


def _scrub_file(connection: sqlite3.Connection, vacuum: bool) -> bool:
    """Take the old bytes out of the file and its log. False if somebody reads meanwhile."""
    try:
        if vacuum:
            connection.execute("VACUUM")
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.OperationalError:
        return False
    return vacuum and not busy


# --- others -------------------------------------------------------------------------------------------------------


def _report(thread_id: str, checkpoints: list[Any], scrubber: Scrubber) -> RedactionReport:
    """What holds a copy, for a checkpointer that we do not rewrite."""
    for one in reversed(checkpoints):  # the oldest first: a call comes before its answer
        scrubber.learn(one.checkpoint)
        scrubber.learn(list(one.pending_writes or ()))
    copies = []
    for one in checkpoints:
        place = one.config["configurable"]
        for where, value in _values(one):
            found = scrubber.found_in(value)
            if found:
                copies.append(
                    CheckpointCopy(place.get("checkpoint_ns", ""), place.get("checkpoint_id"), where, _named(found))
                )
    return RedactionReport(thread_id, False, len(checkpoints), copies=tuple(copies))


def _values(one: Any) -> Iterator[tuple[str, Any]]:
    for channel, value in one.checkpoint["channel_values"].items():
        yield f"channel {channel}", value
    for _, channel, value in one.pending_writes or ():
        yield f"write {channel}", value
    yield "metadata", one.metadata
