"""What tests hand in where a host would: a clock, ids, embedders, listeners. All exact, all countable.

Owns the fakes and the few words that tests of every file need. Does not own fixtures (``store_suite/fixtures.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from vmem_core import Embeddings, ForgetEvent, Hit, MemorySession, Record, Scope, Store, VmemError

START = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
ADA, BOB = Scope(user_id="ada"), Scope(user_id="bob")


class Clock:
    """Stands still until it is told to move; it may be moved back. Raises ``failure`` while that is set."""

    def __init__(self, now: datetime = START) -> None:
        self.now: Any = now
        self.failure: Exception | None = None

    def __call__(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.now

    def step(self, **span: float) -> datetime:
        """Move by a time span given as for ``timedelta``; a negative one moves back."""
        self.now += timedelta(**span)
        moved: datetime = self.now
        return moved


class Ids:
    """Ids that count: r1, r2, …"""

    def __init__(self, prefix: str = "r") -> None:
        self.prefix, self.made = prefix, 0

    def __call__(self) -> str:
        self.made += 1
        return f"{self.prefix}{self.made}"


def word_vector(text: str, dims: int) -> list[float]:
    """A text as counts of its hashed words: equal words, near vectors; never zero."""
    vector = [0.0] * dims
    for word in text.lower().split() or [text]:
        vector[hashlib.sha256(word.encode("utf-8", "replace")).digest()[0] % dims] += 1.0
    return vector


@dataclass
class FakeEmbedder:
    """Embeds words by their hashes, or as ``vectors`` says, and keeps every call.

    Args:
        model: The model id it reports.
        dims: Its size.
        vectors: Texts whose vector is given.
        before: Awaited in every call, so that a test can act while an embedder works.
    """

    model: str = "fake-a"
    dims: int = 8
    vectors: dict[str, Sequence[float]] = field(default_factory=dict)
    before: Callable[[], Awaitable[None]] | None = None
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        self.calls.append((purpose, tuple(texts)))
        if self.before is not None:
            await self.before()
        return Embeddings([self.vectors.get(text) or word_vector(text, self.dims) for text in texts], self.model)


@dataclass
class RawEmbedder:
    """Answers whatever it was given, sound or not. Sync, so that it runs in a thread."""

    answer: Any
    model: str = "fake-a"
    calls: int = 0

    def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return Embeddings(self.answer(texts) if callable(self.answer) else self.answer, self.model)


@dataclass
class Listener:
    """An ``on_forget`` listener that keeps what it was told, and raises while ``failure`` is set."""

    name: str = "listener"
    log: list[tuple[str, ForgetEvent]] = field(default_factory=list)
    failure: Exception | None = None

    def __call__(self, event: ForgetEvent) -> None:
        self.log.append((self.name, event))
        if self.failure is not None:
            raise self.failure

    @property
    def events(self) -> list[ForgetEvent]:
        return [event for _, event in self.log]


def open_memory(store: Store, scope: Scope = ADA, **more: Any) -> MemorySession:
    """A session over a store, with ids of the library unless others are given."""
    return MemorySession(store, scope, **more)


def texts(found: Sequence[Hit | Record]) -> list[str]:
    """The texts of hits or records, in order."""
    return [one.record.text if isinstance(one, Hit) else one.text for one in found]


def ids(found: Sequence[Hit | Record]) -> list[str]:
    """The ids of hits or records, in order."""
    return [one.record.id if isinstance(one, Hit) else one.id for one in found]


async def in_order(*coroutines: Coroutine[Any, Any, Any], settle: Callable[[Any], Any] | None = None) -> list[Any]:
    """The answers of coroutines that run one after the other; those that are not reached are closed."""
    try:
        return [await (settle(one) if settle is not None else one) for one in coroutines]
    finally:
        for one in coroutines:
            one.close()


async def refusals(*coroutines: Coroutine[Any, Any, Any]) -> list[VmemError]:
    """The library's own errors that coroutines end in, one after the other; anything else fails the test."""
    return await in_order(*coroutines, settle=_refusal)


async def refusal(coroutine: Coroutine[Any, Any, Any]) -> VmemError:
    """The library's own error that a coroutine ends in; anything else fails the test."""
    return (await refusals(coroutine))[0]


async def _refusal(coroutine: Coroutine[Any, Any, Any]) -> VmemError:
    try:
        answer = await coroutine
    except VmemError as error:
        return error
    raise AssertionError(f"not refused, but answered {type(answer).__name__}")


async def everything(memory: MemorySession, *record_ids: str) -> dict[str, Any]:
    """All that callers can see of a scope, to compare before and after."""
    return {
        "scope_revision": await memory.scope_revision(),
        "list": await memory.list(status=None, limit=1000),
        "count": await memory.count(),
        "recent": await memory.recall(top_k=1000, include_retracted=True, include_expired=True),
        "history": {record_id: await memory.history(record_id) for record_id in record_ids},
        "get": {record_id: await memory.get(record_id) for record_id in record_ids},
    }
