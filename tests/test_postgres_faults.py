"""Connections that end in the middle of a write or while they lie idle, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import cycle
from typing import Any

import psycopg
import pytest
from fakes import ADA, Clock, refusal
from postgres_server import fresh_schema, server_uri
from power_cord import EVERY, WRITES, Story, story_of, visible, write
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool
from sqlite_fakes import Gate

from vmem_core import MemorySession, PostgresStore, StoreUnavailableError

POINTS = ("loaded", "applied", "before commit", "after commit")


@pytest.fixture
def schema() -> Iterator[str]:
    with fresh_schema() as name:
        yield name


@pytest.fixture(params=WRITES)
async def story(request: pytest.FixtureRequest) -> Story:
    return await story_of(request.param)


# --- a server that ends connections -----------------------------------------------------------------------------------


class Cutter:
    """Ends every connection of a store at a point of a write: a step of the store's, or what the driver sends next.

    Args:
        schema: The store's, whose name its connections bear.
    """

    def __init__(self, schema: str) -> None:
        self.name = f"cut {schema}"
        self.dsn = make_conninfo(server_uri(), application_name=self.name)
        self.point: object = None
        self.passed = 0

    def __call__(self, point: object) -> None:
        if self.point in (point, self.passed):
            self.point = None
            self.cut()
        self.passed += 1

    def cut(self) -> None:
        """All of them, and wait until they are gone."""
        ended = "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = %s"
        with psycopg.connect(server_uri(), autocommit=True) as connection:
            assert all(row == (True,) for row in connection.execute(ended, (self.name,)).fetchall())

    def aim(self, point: object) -> None:
        """Cut once, there."""
        self.point, self.passed = point, 0


@pytest.fixture
def cutter(schema: str, monkeypatch: pytest.MonkeyPatch) -> Cutter:
    made, plain = Cutter(schema), psycopg.Connection.wait

    def wait(self: Any, *args: Any, **more: Any) -> Any:
        if self.info.get_parameters().get("application_name") == made.name:
            made("message")
        return plain(self, *args, **more)

    monkeypatch.setattr(psycopg.Connection, "wait", wait)
    return made


@pytest.fixture
async def store(schema: str, cutter: Cutter) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(cutter.dsn, schema=schema, clock=Clock())
    made._probe = cutter
    yield made
    await made.close()


async def test_a_connection_cut_at_any_point_of_a_write_leaves_it_whole_or_undone_and_the_next_call_works(
    story: Story, store: PostgresStore, cutter: Cutter
) -> None:
    await story.begin(store)
    cutter.aim("before commit")
    assert_may_be_tried_again(await refusal(write(store, story.name)))
    steps = cutter.passed
    assert steps >= 8
    assert await visible(store) == story.before
    memory, revision = MemorySession(store, ADA), story.before["scope_revision"]
    for point in ("applied", *range(steps % EVERY, steps, 2 * EVERY), "after commit"):
        cutter.aim(point)
        [answer] = await asyncio.gather(write(store, story.name), return_exceptions=True)
        cutter.aim(None)
        is_there = await memory.receipt("k") is not None
        assert await memory.scope_revision() == revision + is_there
        if is_there:  # also if it was cut where one call of the store had ended and the next had not begun
            assert answer.receipt == story.receipt
            break
        assert_may_be_tried_again(answer)
    await story.check(store, after=True)


def assert_may_be_tried_again(error: object) -> None:
    assert isinstance(error, StoreUnavailableError)
    assert error.retryable
    assert "Ada" not in str(error)


async def test_after_a_restart_of_the_server_the_first_call_of_each_kind_works(
    store: PostgresStore, cutter: Cutter
) -> None:
    memory = MemorySession(store, ADA)
    await asyncio.gather(*(memory.remember(f"tea {n}") for n in range(16)))  # so that many connections lie idle
    cutter.cut()
    assert await memory.count() == 16
    cutter.cut()
    assert (await memory.remember("coffee")).receipt.scope_revision == 17
    cutter.cut()
    answers = await asyncio.gather(*(memory.recall("tea") for _ in range(8)))
    assert all(len(hits) == 5 for hits in answers)


# --- tasks that are cancelled ----------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    """A host's pool with one connection, whole at the end of each test."""
    with ConnectionPool(server_uri(), min_size=1, max_size=1, open=True) as made:
        made.wait()
        yield made
        with made.connection() as connection:
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert not connection.autocommit
        stats = made.get_stats()
        assert (stats["pool_size"], stats["pool_available"], stats.get("requests_waiting", 0)) == (1, 1, 0)
        assert stats.get("connections_lost", 0) == stats.get("returns_bad", 0) == 0


# Every write at one point of it, and one write at every point.
CANCELLED = sorted({*zip(WRITES, cycle(POINTS)), *(("revise", point) for point in POINTS)})


@pytest.mark.parametrize(("name", "point"), CANCELLED)
async def test_a_task_cancelled_in_the_middle_of_its_transaction_leaves_the_write_and_the_pool_whole(
    name: str, point: str, schema: str, pool: ConnectionPool
) -> None:
    store, gate, story = PostgresStore(pool, schema=schema, clock=Clock()), Gate(), await story_of(name)
    await story.begin(store)
    store._engine._probe = gate
    gate.hold(point)
    task = asyncio.create_task(write(store, name))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await story.check(store, after=True)  # what has begun is carried to its end
    await store.close()


async def test_tasks_cancelled_after_any_number_of_steps_are_applied_or_not_as_their_ids_tell(
    schema: str, pool: ConnectionPool
) -> None:
    store = PostgresStore(pool, schema=schema)
    memory = MemorySession(store, ADA)
    cancelled = 0
    for turns in range(40):
        task = asyncio.create_task(memory.remember(f"tea {turns}", operation_id=f"k{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        [answer] = await asyncio.gather(task, return_exceptions=True)
        cancelled += isinstance(answer, asyncio.CancelledError)
    assert cancelled >= 10
    await memory.count()  # waits for the one connection
    told = [await memory.receipt(f"k{turns}") is not None for turns in range(40)]
    assert await memory.count() == await memory.scope_revision() == sum(told)
    again = [await memory.remember(f"tea {turns}", operation_id=f"k{turns}") for turns in range(40)]
    assert [one.replayed for one in again] == told
    await store.close()


async def test_fifty_tasks_on_one_connection_half_of_them_cancelled(schema: str, pool: ConnectionPool) -> None:
    store, gate = PostgresStore(pool, schema=schema), Gate()
    memory = MemorySession(store, ADA)
    await store.scopes()
    store._engine._probe = gate
    gate.hold("loaded")
    tasks = [asyncio.create_task(memory.remember(f"tea {n}", operation_id=f"k{n}")) for n in range(50)]
    await gate.reached()  # one of them has the connection, the others wait for a thread or for it
    for task in tasks[::2]:
        task.cancel()
    gate.open()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) == 25
    assert all(not answer.replayed for answer in answers[1::2] if not isinstance(answer, BaseException))
    told = [await memory.receipt(f"k{n}") is not None for n in range(50)]
    assert all(told[1::2])
    assert await memory.count() == await memory.scope_revision() == sum(told)
    await store.close()


# --- what is refused before anything is sent --------------------------------------------------------------------------

WRONG = "a\x00b", "\ud800"
CALLS: dict[str, Callable[[MemorySession, str], Any]] = {
    "remember": lambda memory, wrong: memory.remember(wrong),
    "remember, its id": lambda memory, wrong: memory.remember("tea", id=wrong),
    "remember, its operation": lambda memory, wrong: memory.remember("tea", operation_id=wrong),
    "remember, its metadata": lambda memory, wrong: memory.remember("tea", metadata={"a": [{wrong: 1}]}),
    "revise": lambda memory, wrong: memory.revise("r1", text=wrong),
    "revise, its record": lambda memory, wrong: memory.revise(wrong, text="tea"),
    "retract": lambda memory, wrong: memory.retract(wrong),
    "forget": lambda memory, wrong: memory.forget(wrong),
    "recall": lambda memory, wrong: memory.recall(wrong),
    "recall, its metadata": lambda memory, wrong: memory.recall("tea", metadata={"a": wrong}),
    "get": lambda memory, wrong: memory.get(wrong),
    "history": lambda memory, wrong: memory.history(wrong),
    "receipt": lambda memory, wrong: memory.receipt(wrong),
    "list": lambda memory, wrong: memory.list(cursor=wrong),
    # An id of a megabyte, of a name that has its limit.
    "remember, a long id": lambda memory, wrong: memory.remember("tea", id="a" * 2**20),
    "remember, a long operation": lambda memory, wrong: memory.remember("tea", operation_id="a" * 2**20),
    "forget, a long id": lambda memory, wrong: memory.forget("a" * 2**20),
    "get, a long id": lambda memory, wrong: memory.get("a" * 2**20),
}


@pytest.mark.parametrize("wrong", WRONG, ids=["NUL", "surrogate"])
async def test_what_no_column_can_hold_is_refused_before_anything_is_sent(
    wrong: str, schema: str, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(pool, schema=schema)
    memory, sent, plain = MemorySession(store, ADA), [], psycopg.Connection.wait
    await memory.remember("tea", id="r1")

    def wait(self: Any, *args: Any, **more: Any) -> Any:
        sent.append(threading.current_thread().name)
        return plain(self, *args, **more)

    monkeypatch.setattr(psycopg.Connection, "wait", wait)
    await memory.count()
    assert sent  # it would be seen
    sent.clear()
    for name, call in CALLS.items():
        error = await refusal(call(memory, wrong))
        assert (error.code, sent) == ("invalid_request", []), name
    await store.close()
