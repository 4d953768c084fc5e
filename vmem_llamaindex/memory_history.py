"""Where a chat history is kept, and what this process knows of a conversation.

Owns the chat store of one process, the one owner of a chat store that a host gave, and the conversations that objects
of one memory share. Does not own what is stored or when (``memory.py``).
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from pydantic import PrivateAttr
from sqlalchemy.pool import StaticPool

from vmem_core import InvalidRequestError, run_sync
from vmem_llamaindex.binding import check_binding
from vmem_llamaindex.memory_recall import Recalled

T = TypeVar("T")
Row = tuple[int, MessageStatus, dict[str, Any]]

_LIBRARY_THREAD: Final = "vmem-sync"  # whose loop serves ``run_sync``
_MOST_CONVERSATIONS: Final = 256


def on_library_loop() -> bool:
    """Whether we run on the library's own event loop."""
    return threading.current_thread().name == _LIBRARY_THREAD


async def apart(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await something on the library's own loop, from any loop."""
    if on_library_loop():
        return await make()
    return await asyncio.to_thread(lambda: run_sync(make()))


# --- in this process ----------------------------------------------------------------------------------------------


class ProcessChatStore(AsyncDBChatStore):
    """A chat store in this process: for any thread and any event loop. It keeps messages as a database would."""

    _rows: dict[str, list[Row]] = PrivateAttr(default_factory=dict)
    _count: int = PrivateAttr(default=0)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @classmethod
    def class_name(cls) -> str:
        """Return the class name."""
        return "ProcessChatStore"

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The messages of a conversation as JSON objects, oldest first."""
        with self._lock:
            return [data for _, _, data in self._rows.get(key, [])]

    def replace(self, key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
        """Rewrite messages in place, archived ones as well. Returns how many were changed."""
        with self._lock:
            rows = self._rows.get(key, [])
            made = [(number, status, change(data)) for number, status, data in rows]
            self._rows[key] = made
            return sum(new[2] is not old[2] for new, old in zip(made, rows, strict=True))

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """The messages of a conversation."""
        with self._lock:
            found = [data for _, one, data in self._rows.get(key, []) if status in (None, one)]
        first = offset or 0
        chosen = found[first:] if limit is None else found[first : first + limit]
        return [ChatMessage.model_validate(one) for one in chosen]

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """How many there are."""
        with self._lock:
            return sum(status in (None, one) for _, one, _ in self._rows.get(key, []))

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Add one."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Add some, all or none."""
        self.add(key, [message.model_dump(mode="json") for message in messages], status)

    def add(self, key: str, data: list[dict[str, Any]], status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Add messages that are JSON objects already."""
        with self._lock:
            for one in data:
                self._count += 1
                self._rows.setdefault(key, []).append((self._count, status, one))

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Put messages in the place of all that were there."""
        data = [message.model_dump(mode="json") for message in messages]
        with self._lock:
            self._rows.pop(key, None)
        self.add(key, data, status)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the one with a number, as it was counted when it came."""
        with self._lock:
            rows = self._rows.get(key, [])
            found = next((row for row in rows if row[0] == idx), None)
            if found is not None:
                rows.remove(found)
        return None if found is None else ChatMessage.model_validate(found[2])

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete those with a status; None: all."""
        with self._lock:
            left = [row for row in self._rows.pop(key, []) if status not in (None, row[1])]
            if left:
                self._rows[key] = left

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest active ones."""
        with self._lock:
            oldest = [row for row in self._rows.get(key, []) if row[1] is MessageStatus.ACTIVE][:n]
            numbers = {row[0] for row in oldest}
            self._rows[key] = [row for row in self._rows.get(key, []) if row[0] not in numbers]
        return [ChatMessage.model_validate(data) for _, _, data in oldest]

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest active ones."""
        with self._lock:
            rows = self._rows.get(key, [])
            oldest = [row for row in rows if row[1] is MessageStatus.ACTIVE][:n]
            numbers = {row[0] for row in oldest}
            self._rows[key] = [
                (number, MessageStatus.ARCHIVED if number in numbers else status, data) for number, status, data in rows
            ]
        return [ChatMessage.model_validate(data) for _, _, data in oldest]

    async def get_keys(self) -> list[str]:
        """The conversations."""
        return self.keys()

    def keys(self) -> list[str]:
        """The conversations."""
        with self._lock:
            return [key for key, rows in self._rows.items() if rows]


# --- given by the host --------------------------------------------------------------------------------------------

# One at a time makes its tables: LlamaIndex's store fails when several tasks use it first at the same moment.
_FIRST_USE: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
# One at a time uses a database in memory: there all sessions share one connection, and so one transaction. Who ends a
# session rolls back what another has written and not committed.
_ALONE: weakref.WeakKeyDictionary[StaticPool, asyncio.Lock] = weakref.WeakKeyDictionary()


class OwnedChatStore(AsyncDBChatStore):
    """A chat store that a host gave, used from the library's loop alone: engines and pools are bound to one loop.

    Args:
        given: The host's.
    """

    given: Any
    _ready: bool = PrivateAttr(default=False)

    @classmethod
    def class_name(cls) -> str:
        """Return the class name."""
        return "OwnedChatStore"

    async def do(self, act: Callable[[AsyncDBChatStore], Awaitable[T]]) -> T:
        """Do something with the host's store: on the library's loop, and alone where others would undo it."""
        return await apart(lambda: self._owned(act))

    async def _owned(self, act: Callable[[AsyncDBChatStore], Awaitable[T]]) -> T:
        if not self._ready:
            async with _FIRST_USE.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                await self._alone(lambda store: store.count_messages(""))
            self._ready = True
        return await self._alone(act)

    async def _alone(self, act: Callable[[AsyncDBChatStore], Awaitable[T]]) -> T:
        pool = getattr(getattr(self.given, "_async_engine", None), "pool", None)
        async with _ALONE.setdefault(pool, asyncio.Lock()) if isinstance(pool, StaticPool) else nullcontext():
            return await act(self.given)

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """The messages of a conversation."""
        return await self.do(lambda store: store.get_messages(key, status=status, limit=limit, offset=offset))

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """How many there are."""
        return await self.do(lambda store: store.count_messages(key, status=status))

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Add one."""
        await self.do(lambda store: store.add_message(key, message, status=status))

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Add some."""
        await self.do(lambda store: store.add_messages(key, messages, status=status))

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Put messages in the place of all that were there."""
        await self.do(lambda store: store.set_messages(key, messages, status=status))

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete one."""
        return await self.do(lambda store: store.delete_message(key, idx))

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete those with a status; None: all."""
        await self.do(lambda store: store.delete_messages(key, status=status))

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest active ones."""
        return await self.do(lambda store: store.delete_oldest_messages(key, n))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest active ones."""
        return await self.do(lambda store: store.archive_oldest_messages(key, n))

    async def get_keys(self) -> list[str]:
        """The conversations."""
        return await self.do(lambda store: store.get_keys())


_LOCK = threading.RLock()  # a conversation that begins asks for the chat store
# By binding, scope and store; without a scope: for all of them.
_GIVEN: dict[tuple[str, str, str], OwnedChatStore] = {}


def bind_chat_store(binding: str, chat_store: AsyncDBChatStore) -> None:
    """Give a chat store the name of a binding: saved contexts of this process find their chat history in it.

    ``VersionedMemory.from_session(..., chat_store=...)`` does it as well, for its own scope alone; this is for a
    process that only restores contexts. Bound again, a name gives the new store; a conversation
    that is in one already stays there as long as this process knows it.

    Args:
        binding: The name, as of ``bind_session``.
        chat_store: Any of LlamaIndex's database chat stores, such as ``SQLAlchemyChatStore``. It is used from the
            library's own event loop, so give it an engine of its own.

    Raises:
        InvalidRequestError: For a wrong argument.
    """
    give_chat_store(binding, "", "", chat_store)


def give_chat_store(binding: str, scope: str, store: str, chat_store: AsyncDBChatStore) -> None:
    """Name a chat store for the conversations of one scope in one store, by their digests; empty ones: of all.

    Raises:
        InvalidRequestError: As for :func:`bind_chat_store`.
    """
    name = (check_binding(binding), scope, store)
    if not isinstance(chat_store, AsyncDBChatStore):
        raise InvalidRequestError(
            f"must be an AsyncDBChatStore such as SQLAlchemyChatStore, not {type(chat_store).__name__}",
            path="chat_store",
        )
    with _LOCK:
        before = _GIVEN.get(name)
        if isinstance(chat_store, OwnedChatStore):
            _GIVEN[name] = chat_store
        elif before is None or before.given is not chat_store:
            _GIVEN[name] = OwnedChatStore(given=chat_store)


def bound_chat_store(binding: str, scope: str, store: str) -> OwnedChatStore | None:
    """The chat store that has the name of a binding, for a scope in a store or for all; else None."""
    with _LOCK:
        return _GIVEN.get((binding, scope, store)) or _GIVEN.get((binding, "", ""))


# --- what this process knows of a conversation --------------------------------------------------------------------


@dataclass(eq=False)
class Conversation:
    """A conversation, as all objects of its memory in this process share it: a context makes a new one for each run.

    Args:
        store: Where its messages are.
        tokenizer: The host's; None: LlamaIndex's own.
        own: Ids of messages that came in this process.
        done: Ids of messages that were read.
        claimed: Ids of messages that are being read.
        read_to: The message up to which all were read, also by an earlier process.
        recalled: What was recalled for the turn.
        told: Whether it was logged that nothing can be read.
        ignored: Other conversations of which it was logged that a context does not take them.
    """

    store: AsyncDBChatStore
    tokenizer: Callable[[str], list[Any]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    own: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)
    read_to: str | None = None
    recalled: Recalled = field(default_factory=Recalled)
    told: bool = False
    ignored: set[str] = field(default_factory=set)


_CONVERSATIONS: weakref.WeakValueDictionary[tuple[str, ...], Conversation] = weakref.WeakValueDictionary()
_NEWEST: OrderedDict[tuple[str, ...], Conversation] = OrderedDict()  # kept alive between the runs of a context


def conversation_of(
    binding: str, scope: str, store: str, session_id: str, begin: Callable[[], Conversation]
) -> tuple[Conversation, bool]:
    """The conversation of a memory, and whether it has only begun here.

    It is kept as long as an object of the memory lives, and for those that came last.

    Args:
        binding: The memory's.
        scope: The digest of its scope.
        store: The digest of the store that its records are in.
        session_id: The conversation's key in the chat store.
        begin: Makes one.
    """
    key = (binding, scope, store, session_id)
    with _LOCK:
        found = _CONVERSATIONS.get(key)
        is_new = found is None
        if found is None:
            found = _CONVERSATIONS[key] = begin()
        _NEWEST[key] = found
        _NEWEST.move_to_end(key)
        while len(_NEWEST) > _MOST_CONVERSATIONS:
            _NEWEST.popitem(last=False)
    return found, is_new
