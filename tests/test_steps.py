"""A transaction of many steps whose caller is cancelled: it is left, at whatever point that was."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fakes import ADA, BOB, open_memory
from postgres_server import fresh_schema, server_uri
from psycopg_pool import ConnectionPool
from store_suite.exporting import lines

from vmem_core import InMemoryStore, PostgresStore, SqliteStore, Store, import_jsonl
from vmem_core.stores._steps import steps


class Held:
    """A transaction that stops where it is told to, and tells what was done with it."""

    def __init__(self, at: str) -> None:
        self.at, self.done = at, list[str]()
        self.reached, self.opened = threading.Event(), threading.Event()

    def step(self, name: str) -> str:
        """Stop there, if that was asked for."""
        if name == self.at:
            self.reached.set()
            self.opened.wait()
        self.done.append(name)
        return name

    @contextmanager
    def transaction(self) -> Iterator[Held]:
        self.step("enter")
        try:
            yield self
        except BaseException:
            self.step("undo")
            raise
        self.step("commit")


async def use(held: Held) -> None:
    async with steps(held.transaction(), lambda error: error) as (entered, run):
        await run(entered.step, "work")


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize(
    ("at", "done"),
    [
        ("enter", ["enter", "undo"]),
        ("work", ["enter", "work", "undo"]),
        ("commit", ["enter", "work", "commit"]),
    ],
)
async def test_a_transaction_whose_caller_is_cancelled_once_or_more_has_been_left_when_the_caller_is_told(
    at: str, done: list[str], times: int
) -> None:
    held = Held(at)
    task = asyncio.ensure_future(use(held))
    await asyncio.to_thread(held.reached.wait)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    held.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held.done == done


async def test_a_caller_that_is_cancelled_after_any_number_of_turns_of_its_loop_leaves_what_was_entered() -> None:
    for turns in range(30):
        held = Held("nowhere")
        task = asyncio.ensure_future(use(held))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert held.done in ([], ["enter", "undo"], ["enter", "work", "undo"], ["enter", "work", "commit"])


async def test_a_transaction_that_cannot_be_entered_is_not_left_and_its_error_is_ours() -> None:
    @contextmanager
    def refusing() -> Iterator[None]:
        raise OSError("the driver's words")
        yield

    with pytest.raises(ValueError, match=r"^ours$"):
        async with steps(refusing(), lambda error: ValueError("ours")):
            raise AssertionError("never entered")


# --- the stores ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    """A host's pool with one connection, whole at the end of each test."""
    with ConnectionPool(server_uri(), min_size=1, max_size=1, open=True) as made:
        yield made
        with made.connection() as connection:
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert made.get_stats()["pool_available"] == 1


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "sqlite":
        async with SqliteStore(tmp_path / "memory.db") as made:
            yield made
    else:
        pool = request.getfixturevalue("pool")
        with fresh_schema() as schema:
            made = PostgresStore(pool, schema=schema)
            yield made
            await made.close()


async def put_in(store: Store) -> None:
    origin = InMemoryStore()
    await open_memory(origin).remember("Ada likes tea")
    await import_jsonl(store, await lines(origin))


async def take_out(store: Store) -> None:
    await lines(store, BOB)


@pytest.mark.parametrize(("call", "name"), [(put_in, "transaction_apart"), (take_out, "snapshot_apart")])
async def test_an_export_or_import_that_is_cancelled_while_it_waits_to_begin_holds_nothing_afterwards(
    store: Any, call: Callable[[Store], Awaitable[None]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = open_memory(store, BOB)
    await bob.remember("Bob likes rum")
    engine, held = store._opened(), Held("enter")
    begin = getattr(engine, name)

    @contextmanager
    def slow(*arguments: Any) -> Iterator[Any]:
        with held.transaction(), begin(*arguments) as connection:
            held.step("begun")
            yield connection

    monkeypatch.setattr(engine, name, slow)
    task = asyncio.ensure_future(call(store))  # type: ignore[arg-type]
    await asyncio.to_thread(held.reached.wait)
    task.cancel()
    await asyncio.sleep(0)
    held.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held.done == ["enter", "begun", "undo"]
    assert (await bob.remember("Bob likes ale")).receipt.scope_revision == 2
    assert await store.scope_revision(ADA) == 0
