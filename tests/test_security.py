"""What the page on security promises: the rights it prints are enough, and no more than that."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest
from fake_models import user
from fakes import ADA, FakeEmbedder, open_memory, refusal
from postgres_server import server_uri
from psycopg.conninfo import make_conninfo

from vmem_core import Draft, PostgresStore, Store, StoreUnavailableError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
BLOCKS = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
ROLES = ("vmem_app", "vmem_reader", "vmem_owner")


def address(role: str) -> str:
    return make_conninfo(server_uri(), user=role)


@pytest.fixture
def roles() -> Iterator[None]:
    """The roles of the page's first block; none of them is left."""
    with psycopg.connect(server_uri(), autocommit=True) as connection:
        connection.execute(BLOCKS[0])
        yield
        connection.execute("drop schema memory cascade")
        for role in ROLES:
            connection.execute(f"drop owned by {role}")  # type: ignore[arg-type]
            connection.execute(f"drop role {role}")  # type: ignore[arg-type]


@pytest.fixture
async def opened(roles: None) -> AsyncIterator[Callable[[str], Store]]:
    """Stores as a role opens them, set up as the page says."""
    async with AsyncExitStack() as stack:

        def store_of(role: str) -> Store:
            made = PostgresStore(address(role), schema="memory")
            stack.push_async_callback(made.close)
            return made

        await open_memory(store_of("vmem_owner"), embedder=FakeEmbedder()).remember("first", id="first")
        with psycopg.connect(address("vmem_owner"), autocommit=True) as connection:
            connection.execute(BLOCKS[1])
        yield store_of


async def test_the_applications_role_can_do_all_that_an_application_does(opened: Callable[[str], Store]) -> None:
    store = opened("vmem_app")
    memory = open_memory(store, embedder=FakeEmbedder())
    await memory.remember("tea", id="a")
    await memory.revise("a", text="green tea", expected_revision=1)
    await memory.remember("green tea", supersede="skip_equal")
    await memory.retract("first")
    assert [hit.record.id for hit in await memory.recall("tea")] == ["a"]
    assert (await memory.forget("a")).revisions == (1, 2)
    await memory.extract([user("m1", "Ada likes cake")], infer=False)
    await memory.remember_many([Draft("cake"), Draft("milk")])
    number = (await store.embeddings.begin("fake-a", 8)).number
    assert await store.embeddings.put(number, [(one.id, 1, None) for one in (await memory.list()).records]) == 3
    await memory.forget_scope()
    assert await memory.count() == 0
    assert await store.diagnose() == []


BEYOND = (
    "delete from memory.vmem_receipts",
    "delete from memory.vmem_records",
    "delete from memory.vmem_revisions",
    "delete from memory.vmem_messages",
    "update memory.vmem_schema set version = 99",
    "update memory.vmem_store set value = 'german'",
    "update memory.vmem_messages set message_id = 'm'",
    "delete from memory.vmem_generations",
    "drop table memory.vmem_receipts",
    "create table memory.mine(x integer)",
    "truncate memory.vmem_scopes",
)


async def test_the_applications_role_can_do_no_more(opened: Callable[[str], Store]) -> None:
    for statement in BEYOND:
        with (
            psycopg.connect(address("vmem_app")) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(statement)  # type: ignore[arg-type]


async def test_the_reading_role_reads_and_cannot_write(opened: Callable[[str], Store]) -> None:
    store = opened("vmem_reader")
    memory = open_memory(store, embedder=FakeEmbedder())
    assert [hit.record.id for hit in await memory.recall("first")] == ["first"]
    assert len((await memory.list()).records) == 1
    assert list(await store.scopes()) == [ADA]
    assert await store.diagnose() == []
    error = await refusal(memory.remember("tea"))
    assert isinstance(error, StoreUnavailableError)
    assert not error.retryable
    assert "grant" in str(error)


async def test_a_role_that_may_delete_but_does_not_own_the_tables_is_told_that_it_cannot_scrub(roles: None) -> None:
    for role, works in (("vmem_owner", True), ("vmem_app", False)):
        store = PostgresStore(address(role), schema="memory")
        await open_memory(store).remember(f"tea of {role}")
        if works:
            await store.scrub()
        else:
            error = await refusal(store.scrub())
            assert isinstance(error, StoreUnavailableError)
            assert "owner" in str(error)
        await store.close()


async def test_only_the_owner_scrubs(opened: Callable[[str], Store]) -> None:
    error = await refusal(opened("vmem_app").scrub())
    assert isinstance(error, StoreUnavailableError)
    await opened("vmem_owner").scrub()


def test_the_page_prints_two_blocks_of_rights() -> None:
    assert len(BLOCKS) == 2
