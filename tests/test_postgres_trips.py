"""What passes between the store and the server: round trips, state that would outlive a transaction, lost answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from fakes import ADA, FakeEmbedder
from postgres_proxy import Proxy, proxy
from postgres_server import fresh_schema, server_uri
from psycopg_pool import ConnectionPool

from vmem_core import Draft, MemorySession, PostgresStore, StoreUnavailableError


@pytest.fixture
def between() -> Iterator[Proxy]:
    with proxy(server_uri()) as made:
        yield made


@pytest.fixture
async def memory(between: Proxy) -> AsyncIterator[MemorySession]:
    with fresh_schema() as schema:
        store = PostgresStore(between.uri, schema=schema)
        session = MemorySession(store, ADA, embedder=FakeEmbedder())
        for text in ("tea", "rain", "sun"):  # the first calls look up what is kept from then on
            await session.remember(text, id=text)
            await session.recall(text)
        yield session
        await store.close()


CALLS: dict[str, tuple[int, Callable[[MemorySession], Awaitable[object]]]] = {
    "remember": (2, lambda s: s.remember("coffee")),
    "remember_many": (3, lambda s: s.remember_many([Draft(f"note {n}") for n in range(20)])),
    "revise": (2, lambda s: s.revise("tea", text="green tea")),
    "retract": (2, lambda s: s.retract("tea")),  # again: a receipt only
    "recall": (3, lambda s: s.recall("tea")),
    "get": (3, lambda s: s.get("tea")),
    "count": (3, lambda s: s.count()),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_a_call_takes_no_more_round_trips_than_this(memory: MemorySession, between: Proxy, verb: str) -> None:
    most, call = CALLS[verb]
    counted = []
    for _ in range(4):  # the pool may open a connection more at any moment, in the background
        between.count()
        await call(memory)
        counted.append(between.trips)
    assert 1 <= min(counted) <= most


async def test_nothing_that_outlives_a_transaction_is_left_on_a_connection(
    memory: MemorySession, between: Proxy
) -> None:
    between.count()
    for _, call in CALLS.values():
        for _ in range(6):  # the driver would prepare a statement at its fifth use
            await call(memory)
    sent = between.sent.lower()
    assert b"_pg3_" not in sent  # the driver's name for a prepared statement
    assert not [word for word in (b"set session", b"listen", b"advisory_lock(", b"create temp") if word in sent]


async def test_each_transaction_may_meet_another_connection(between: Proxy) -> None:
    """As behind a pooler in transaction mode: no connection is used twice."""

    class Fresh(ConnectionPool):
        def getconn(self, timeout: float | None = None):  # type: ignore[no-untyped-def]
            connection = super().getconn(timeout)
            connection.execute("discard all") if connection.autocommit else connection.rollback()
            return connection

    options = {"prepare_threshold": None, "autocommit": True}
    with fresh_schema() as schema, Fresh(server_uri(), kwargs=options, min_size=1, max_size=1, open=True) as pool:
        store = PostgresStore(pool, schema=schema)
        session = MemorySession(store, ADA, embedder=FakeEmbedder())
        record = (await session.remember("tea")).records[0]
        await session.revise(record.id, text="green tea")
        assert [hit.record.text for hit in await session.recall("green tea")] == ["green tea"]
        await session.forget(record.id)
        assert await session.recall("tea") == []
        await store.close()


class AnswerToWrite:
    """Picks the answer that tells of the commit of a transaction that wrote."""

    def __init__(self) -> None:
        self._wrote = False

    def __call__(self, answer: bytes) -> bool:
        self._wrote |= b"UPDATE 1" in answer  # of the scope's row, by every write
        return self._wrote and b"COMMIT" in answer


@pytest.mark.parametrize("verb", ["remember", "remember_many", "revise", "retract", "forget"])
async def test_when_the_answer_to_a_commit_is_lost_the_operation_id_tells_the_truth(
    memory: MemorySession, between: Proxy, verb: str
) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "remember": lambda: memory.remember("coffee", operation_id="k"),
        "remember_many": lambda: memory.remember_many([Draft("coffee"), Draft("cocoa")], operation_id="k"),
        "revise": lambda: memory.revise("tea", text="green tea", operation_id="k"),
        "retract": lambda: memory.retract("tea", operation_id="k"),
        "forget": lambda: memory.forget("tea", operation_id="k"),
    }
    revision = await memory.scope_revision()
    between.lose = AnswerToWrite()
    with pytest.raises(StoreUnavailableError) as caught:
        await calls[verb]()
    between.lose = lambda answer: False
    assert caught.value.retryable
    again = await calls[verb]()
    assert again.replayed  # type: ignore[attr-defined]
    assert await memory.scope_revision() == revision + 1
    assert await memory.receipt("k") == again.receipt  # type: ignore[attr-defined]
