"""Forgotten records in LlamaIndex's chat stores and saved contexts: rewritten where we can, reported where we cannot.

Owns how each chat store is read and rewritten, and what a report says. Does not own what counts as a copy
(``scrubbing.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError

from vmem_core import InvalidRequestError, run_sync
from vmem_llamaindex.memory_history import OwnedChatStore, ProcessChatStore
from vmem_llamaindex.scrubbing import Scrubber

_ELSEWHERE: Final = ("running workflows, their handlers and contexts", "traces and logs", "providers", "backups")
OF_CHAT_STORES: Final = ("saved contexts", *_ELSEWHERE)
OF_CONTEXTS: Final = ("chat stores", "earlier saves of the context", *_ELSEWHERE)

# Of a saved context, what holds values of its own, and how deep.
_PLACES: Final = ("state", "state_data", "_data", "workers")
_MOST_OF_A_PLACE: Final = 4


@dataclass(frozen=True, slots=True)
class LeftCopy:
    """A place that still holds a text.

    Args:
        place: What holds it, such as ``"message 3 of chat-1"`` or ``"state_data"``.
        record_ids: The records it is of; empty: it is one of the texts given.
    """

    place: str
    record_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RedactionReport:
    """What a redaction did. It holds no text.

    Args:
        rewrites: Whether this kind of store is rewritten; else the copies are only reported.
        values: How many messages or values it looked at.
        rewritten: How many of them were rewritten.
        copies: What still holds a copy.
        scrubbed: Whether the old bytes are gone as well, from the file of SQLite and its log. Of other databases that
            is not known.
        not_reached: Where else copies can be, which this redaction does not see.
    """

    rewrites: bool
    values: int = 0
    rewritten: int = 0
    copies: tuple[LeftCopy, ...] = ()
    scrubbed: bool = False
    not_reached: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether no copy was left where it looked."""
        return not self.copies


# --- chat stores --------------------------------------------------------------------------------------------------


def redact_chat_store(
    chat_store: AsyncDBChatStore,
    key: str | None = None,
    *,
    record_ids: Collection[str],
    texts: Collection[str] = (),
    vacuum: bool = True,
) -> RedactionReport:
    """Take forgotten records out of a chat store. See :func:`aredact_chat_store`."""
    return run_sync(aredact_chat_store(chat_store, key, record_ids=record_ids, texts=texts, vacuum=vacuum))


async def aredact_chat_store(
    chat_store: AsyncDBChatStore,
    key: str | None = None,
    *,
    record_ids: Collection[str],
    texts: Collection[str] = (),
    vacuum: bool = True,
) -> RedactionReport:
    """Take forgotten records out of a chat store.

    Found are answers of ``memory_recall``, calls of ``memory_remember`` and ``memory_revise`` whose answer names a
    record, results of the retriever, and the same texts word for word anywhere else, in active and archived messages.
    They become ``[forgotten]``. Messages, their order, and calls with their results stay, so that a conversation goes
    on. Not found are other words for the same thing, such as what the user said: give ``texts``, or delete the chat.

    ``SQLAlchemyChatStore`` and the chat store of a ``VersionedMemory`` are rewritten, in one transaction. For any other
    the report says what holds a copy.

    Args:
        chat_store: The store; of a memory, its ``sql_store``.
        key: The conversation, a memory's ``session_id``; None: all of them.
        record_ids: The forgotten records.
        texts: Texts to be taken out as well.
        vacuum: Whether SQLite's file is rewritten when something was found, so that no old page keeps a text.

    Raises:
        InvalidRequestError: For a wrong argument. What the store raises reaches the caller as it is.

    >>> import asyncio
    >>> from llama_index.core.llms import ChatMessage
    >>> store = SQLAlchemyChatStore("chat")
    >>> async def forget_tea():
    ...     await store.add_message("chat-1", ChatMessage(role="assistant", content="You like tea."))
    ...     report = await aredact_chat_store(store, "chat-1", record_ids=[], texts=["tea"])
    ...     [message] = await store.get_messages("chat-1")
    ...     await store._async_engine.dispose()
    ...     return report.rewritten, message.content
    >>> asyncio.run(forget_tea())
    (1, 'You like [forgotten].')
    """
    scrubber = Scrubber(record_ids, texts)
    _check_key(key)
    if isinstance(chat_store, OwnedChatStore):
        return await chat_store.do(lambda store: _redact_store(store, key, scrubber, vacuum))
    return await _redact_store(chat_store, key, scrubber, vacuum)


def _check_key(key: object) -> None:
    if key is not None and (not isinstance(key, str) or not key.strip()):
        raise InvalidRequestError("must be the key of a conversation, or None", path="key")


async def _redact_store(store: Any, key: str | None, scrubber: Scrubber, vacuum: bool) -> RedactionReport:
    if isinstance(store, ProcessChatStore):
        return _redact_process(store, key, scrubber)
    if isinstance(store, SQLAlchemyChatStore):
        return await _redact_sql(store, key, scrubber, vacuum)
    if not isinstance(store, AsyncDBChatStore):
        raise InvalidRequestError(f"must be an AsyncDBChatStore, not {type(store).__name__}", path="chat_store")
    return await _report(store, key, scrubber)


@dataclass(slots=True)
class _Tally:
    """What was done so far."""

    scrubber: Scrubber
    values: int = 0
    rewritten: int = 0
    copies: list[LeftCopy] = field(default_factory=list)

    def scrub(self, value: Any, place: str) -> Any:
        """A value without the texts; the same object if there was none."""
        self.values += 1
        clean = self.scrubber.scrub(value)
        self.rewritten += clean is not value
        self.note(clean, place)
        return clean

    def note(self, value: Any, place: str) -> None:
        """Note what is left in a value."""
        left = self.scrubber.found_in(value)
        if left:
            self.copies.append(LeftCopy(place, tuple(sorted(one for one in left if one))))

    def report(self, *, rewrites: bool, scrubbed: bool, not_reached: tuple[str, ...]) -> RedactionReport:
        return RedactionReport(rewrites, self.values, self.rewritten, tuple(self.copies), scrubbed, not_reached)


def _redact_process(store: ProcessChatStore, key: str | None, scrubber: Scrubber) -> RedactionReport:
    keys = store.keys() if key is None else [key]
    for one in keys:
        scrubber.learn(store.rows(one))
    tally = _Tally(scrubber)
    for one in keys:
        store.replace(one, lambda data, one=one: tally.scrub(data, f"a message of {one}"))  # type: ignore[misc]
    return tally.report(rewrites=True, scrubbed=True, not_reached=OF_CHAT_STORES)


async def _redact_sql(store: SQLAlchemyChatStore, key: str | None, scrubber: Scrubber, vacuum: bool) -> RedactionReport:
    # The store has no verb that changes a message, and setting a history anew would delete what is archived.
    make_session, table = await store._initialize()
    tally = _Tally(scrubber)
    query = select(table.c.id, table.c.key, table.c.data).order_by(table.c.timestamp, table.c.id)
    is_sqlite = store._is_sqlite_database()
    async with make_session() as session:
        if is_sqlite:
            await session.execute(text("PRAGMA secure_delete = ON"))  # of this connection, which keeps it
        rows = (await session.execute(query if key is None else query.where(table.c.key == key))).fetchall()
        for conversation in dict.fromkeys(row.key for row in rows):
            scrubber.learn([row.data for row in rows if row.key == conversation])
        for row in rows:
            clean = tally.scrub(row.data, f"message {row.id} of {row.key}")
            if clean is not row.data:
                await session.execute(update(table).where(table.c.id == row.id).values(data=clean))
        await session.commit()
    scrubbed = not tally.rewritten or (is_sqlite and await _scrub_file(store, vacuum))
    return tally.report(rewrites=True, scrubbed=scrubbed, not_reached=OF_CHAT_STORES)


async def _scrub_file(store: SQLAlchemyChatStore, vacuum: bool) -> bool:
    """Take the old bytes out of SQLite's file and its log. False if somebody uses it meanwhile."""
    engine, _ = await store._setup_connections()
    async with engine.connect() as opened:
        connection = await opened.execution_options(isolation_level="AUTOCOMMIT")
        try:
            if vacuum:
                await connection.execute(text("VACUUM"))
            busy = (await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))).scalar_one()
        except OperationalError:
            return False
    return vacuum and not busy


async def _report(store: AsyncDBChatStore, key: str | None, scrubber: Scrubber) -> RedactionReport:
    """What holds a copy, in a store that we do not rewrite."""
    stored = {}
    for one in await store.get_keys() if key is None else [key]:
        messages = await store.get_messages(one, status=None)
        stored[one] = [message.model_dump(mode="json") for message in messages]
    for conversation in stored.values():
        scrubber.learn(conversation)
    tally = _Tally(scrubber)
    for one, data in stored.items():
        for place, message in enumerate(data):
            tally.values += 1
            tally.note(message, f"message {place} of {one}")
    return tally.report(rewrites=False, scrubbed=False, not_reached=OF_CHAT_STORES)


# --- saved contexts -----------------------------------------------------------------------------------------------


def redact_context(
    data: dict[str, Any], *, record_ids: Collection[str], texts: Collection[str] = ()
) -> tuple[dict[str, Any], RedactionReport]:
    """Take forgotten records out of a saved context: what ``Context.to_dict()`` gave.

    Found is what :func:`aredact_chat_store` finds, and records as a context shows them to a model, in the state and in
    the events of steps that were under way, also where they are JSON inside of JSON. Ids and everything else stay as
    they are, so that a run can be resumed. What was pickled (``PickleSerializer``) is not rewritten but reported.

    Args:
        data: The saved context; it is not changed.
        record_ids: The forgotten records.
        texts: Texts to be taken out as well.

    Returns:
        The context without the texts, and what was done.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> clean, report = redact_context({"state": {"user_msg_str": '"I like tea."'}}, record_ids=[], texts=["tea"])
    >>> clean, report.rewritten
    ({'state': {'user_msg_str': '"I like [forgotten]."'}}, 1)
    """
    scrubber = Scrubber(record_ids, texts)
    if not isinstance(data, dict):
        raise InvalidRequestError("must be what Context.to_dict() gave", path="data")
    scrubber.learn(data)
    tally = _Tally(scrubber)
    clean = {name: _scrub_place(tally, value, name) for name, value in data.items()}
    return clean, tally.report(rewrites=True, scrubbed=True, not_reached=OF_CONTEXTS)


def _scrub_place(tally: _Tally, value: Any, place: str) -> Any:
    """One value, each of those of the state and each step for itself, so that a report can name it."""
    if isinstance(value, dict) and place.count(".") < _MOST_OF_A_PLACE and place.split(".")[-1] in _PLACES:
        return {name: _scrub_place(tally, one, f"{place}.{name}") for name, one in value.items()}
    return tally.scrub(value, place)
