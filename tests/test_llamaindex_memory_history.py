"""Where the chat memory keeps messages: any chat store, any thread, any event loop, first use by many at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context
from llamaindex_fakes import Call
from llamaindex_memory_fakes import BOB, chat_stores, function_agent, known, learning, read_by, roles
from sqlalchemy.ext.asyncio import create_async_engine

from vmem_core import InMemoryStore, InvalidRequestError, MemorySession, Scope, UnsupportedError, run_sync
from vmem_llamaindex import VersionedMemory, aredact_chat_store, bind_chat_store, bind_session
from vmem_llamaindex import binding as bindings
from vmem_llamaindex import memory_history as histories
from vmem_llamaindex.memory_history import ProcessChatStore

USER = ChatMessage(role="user", content="I like tea.")
ANSWER = ChatMessage(role="assistant", content="Noted.")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Callable[[], SQLAlchemyChatStore]]:
    """Makes chat stores in one file, each with an engine of its own, as processes have."""
    async with chat_stores(tmp_path) as make:
        yield make


def memory_of(session: MemorySession, named: str, **more: Any) -> VersionedMemory:
    return VersionedMemory.from_session(session, binding=named, **{"on_error": "raise", **more})


# --- a chat store of the host's -----------------------------------------------------------------------------------


async def test_a_chat_is_found_again_by_another_process_in_the_hosts_chat_store(
    named: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, model = learning()
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(session, named, chat_store=database()), ctx=ctx)
    data = json.loads(json.dumps(ctx.to_dict()))
    assert "I like tea." not in data["state"]["state_data"]["_data"]["memory"]
    monkeypatch.setattr(bindings, "_BOUND", {})
    monkeypatch.setattr(histories, "_GIVEN", {})
    monkeypatch.setattr(histories, "_CONVERSATIONS", {})
    bind_session(named, session)
    with pytest.raises(ValueError, match="call bind_chat_store"):
        await agent.run("I like coffee.", ctx=Context.from_dict(agent, data))
    bind_chat_store(named, database())
    ctx = Context.from_dict(agent, data)
    await agent.run("I like coffee.", ctx=ctx)
    kept = await ctx.store.get("memory")
    assert [one.content for one in await kept.aget_all()] == ["I like tea.", "done", "I like coffee.", "done"]
    assert read_by(model) == ["I like tea.", "I like coffee."]


async def test_a_conversation_with_a_lost_context_is_read_once_all_the_same(named: str, database: Any) -> None:
    session, model = learning()
    for number in range(3):
        memory = memory_of(session, f"{named}{number}", session_id="s", chat_store=database())
        await function_agent().run(f"I like tea number {number}.", memory=memory)
    assert read_by(model) == [f"I like tea number {number}." for number in range(3)]


async def test_many_first_uses_of_a_chat_store_at_once_all_succeed(named: str, database: Any) -> None:
    store, (session, model) = database(), learning()
    memories = [memory_of(session, f"{named}{number}", chat_store=store) for number in range(20)]
    await asyncio.gather(*(memory.aput(USER) for memory in memories))
    assert [roles(await memory.aget_all()) for memory in memories] == [["user"]] * 20
    await asyncio.gather(*(memory.aput(ANSWER) for memory in memories))
    assert len(read_by(model)) == 20
    assert await known(session) == ["I like tea."]


async def test_a_chat_history_of_another_scope_is_refused(named: str, database: Any) -> None:
    store, (ada, _), (bob, heard) = database(), learning(), learning(BOB)
    await memory_of(ada, named, session_id="s", chat_store=store).aput(USER)
    of_bob = memory_of(bob, f"{named} of bob", session_id="s", chat_store=store)
    for act in (of_bob.aget(), of_bob.aget_all(), of_bob.aput(ANSWER), of_bob.aset([ANSWER]), of_bob.aflush()):
        with pytest.raises(InvalidRequestError, match="chat history of another scope"):
            await act
    assert read_by(heard) == []
    in_process = [memory_of(one, f"{named} {place}", session_id="s") for place, one in enumerate((ada, bob))]
    await in_process[0].aput(USER)
    assert await in_process[1].aget_all() == []


async def test_a_chat_store_that_is_bound_later_is_used_from_then_on(named: str, database: Any) -> None:
    session, _ = learning()
    await memory_of(session, named, session_id="s").aput(USER)
    for _ in range(2):  # as a host does that makes a chat store for each request
        memory = memory_of(session, named, session_id="s", chat_store=database())
        await memory.aput_messages([ChatMessage(role="user", content="I like coffee."), ANSWER])
    assert roles(await memory.aget_all()) == ["user", "assistant"] * 2
    assert roles(await memory_of(session, named, session_id="s").aget_all()) == ["user", "assistant"] * 2


async def test_a_conversation_stays_in_its_chat_store_when_another_is_bound(named: str, database: Any) -> None:
    session, _ = learning()
    other = SQLAlchemyChatStore("other", async_engine=database()._async_engine)
    memory = memory_of(session, named, session_id="s", chat_store=database())
    await memory.aput(USER)
    bind_chat_store(named, other)
    memory_of(session, named, session_id="another chat", chat_store=other)
    again = memory_of(session, named, session_id="s")
    assert roles(await again.aget_all()) == ["user"]
    moved = memory_of(session, named, session_id="s", chat_store=other)  # by name
    assert await moved.aget_all() == []


async def test_messages_that_were_there_before_are_the_past(named: str, database: Any) -> None:
    store, (session, model) = database(), learning()
    await asyncio.to_thread(run_sync, store.add_messages("s", [ChatMessage(role="user", content="Old."), ANSWER]))
    memory = memory_of(session, named, session_id="s", chat_store=store)
    await function_agent().run("I like tea.", memory=memory)
    assert roles(await memory.aget()) == ["user", "assistant"] * 2
    assert read_by(model) == ["I like tea."]


async def test_a_message_that_a_slow_clock_puts_before_those_of_another_process_is_read(
    named: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, model = learning()
    memory = memory_of(session, named, chat_store=database())
    await memory.aput_messages([USER, ANSWER])
    data = memory.to_dict()
    monkeypatch.setattr(histories, "_CONVERSATIONS", {})
    monkeypatch.setattr("time.time_ns", lambda: 1)
    later = VersionedMemory.from_dict(data)
    await later.aput_messages([ChatMessage(role="user", content="I like coffee."), ANSWER])
    assert [one.content for one in await later.aget_all()] == ["I like coffee.", "Noted.", "I like tea.", "Noted."]
    assert read_by(model) == ["I like tea.", "I like coffee."]


async def test_trust_is_kept_with_the_messages(named: str, database: Any) -> None:
    """A turn that is read later, by another process, is read by what the framework told when its tools ran."""
    session, model = learning()
    lookup = FunctionTool.from_defaults(lambda number: "blue", name="lookup_order", description="x")
    agent = function_agent({"Where?": [[Call("lookup_order", {"number": 1}, "c1")]]}, [lookup])
    trusting = {"trusted_tools": ["lookup_order"], "session_id": "s"}
    await agent.run("Where?", memory=memory_of(session, named, chat_store=database(), extract="manual", **trusting))
    later = memory_of(session, f"{named} later", chat_store=database(), **trusting)
    await later.aflush()
    assert read_by(model) == ["Where?", "blue"]


# --- sync code ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_database", [False, True])
async def test_sync_methods_work_in_a_running_loop_and_in_threads(
    named: str, database: Any, with_database: bool
) -> None:
    session, model = learning()
    memory = memory_of(session, named, chat_store=database() if with_database else None)
    memory.put(USER)  # as a cell of a notebook does: the loop runs
    await memory.aput(ANSWER)
    await asyncio.to_thread(memory.put_messages, [ChatMessage(role="user", content="I like coffee."), ANSWER])
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: memory.get_all(), range(4)))
    assert all(roles(messages) == ["user", "assistant"] * 2 for messages in read)
    assert read_by(model) == ["I like tea.", "I like coffee."]
    memory.set([*memory.get("Which tea?")[-4:], ChatMessage(role="user", content="I like milk.")])
    assert roles(memory.get_all()) == ["user", "assistant"] * 2 + ["user"]
    memory.reset()
    assert memory.get_all() == []


async def test_sync_methods_do_not_wait_for_a_lock_of_the_loop_that_they_block(named: str, database: Any) -> None:
    session, _ = learning()
    memory = memory_of(session, named, chat_store=database())
    writing = asyncio.create_task(memory.aput(USER))
    await asyncio.sleep(0)  # it has begun
    memory.put(ChatMessage(role="system", content="Be kind."))
    await writing
    assert sorted(roles(await memory.aget_all())) == ["system", "user"]


async def test_sync_methods_refuse_the_librarys_own_loop(named: str) -> None:
    memory = memory_of(learning()[0], named)

    async def inside() -> None:
        memory.put(USER)

    with pytest.raises(UnsupportedError, match="own event loop"):
        await asyncio.to_thread(run_sync, inside())


async def test_one_conversation_is_used_from_two_loops_at_once(named: str, database: Any) -> None:
    session, model = learning()
    memory = memory_of(session, named, chat_store=database())

    async def talk(number: int) -> None:
        await memory.aput_messages([ChatMessage(role="user", content=f"I like tea number {number}."), ANSWER])

    others = [threading.Thread(target=lambda number=number: asyncio.run(talk(number))) for number in range(3)]
    for thread in others:
        thread.start()
    await talk(3)
    await asyncio.to_thread(lambda: [thread.join() for thread in others])
    assert sorted(read_by(model)) == [f"I like tea number {number}." for number in range(4)]


async def test_a_sync_tool_may_use_the_memory_of_its_own_run(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)

    def look(number: int) -> str:
        """Looks at the chat."""
        return str(len(memory.get_all()))

    agent = function_agent({"Look.": [[Call("look", {"number": 1}, "c1")]]}, [look])
    await agent.run("Look.", memory=memory)
    assert [one.content for one in await memory.aget_all() if one.role == "tool"] == ["1"]
    assert read_by(model) == ["Look."]


# --- the chat store of this process -------------------------------------------------------------------------------


@pytest.fixture(params=["process", "upstream"])
async def chat_store(request: pytest.FixtureRequest) -> AsyncIterator[AsyncDBChatStore]:
    """Ours, and LlamaIndex's own as the measure."""
    if request.param == "process":
        yield ProcessChatStore()
        return
    engine = create_async_engine("sqlite+aiosqlite:///:memory:")
    yield SQLAlchemyChatStore("chat", async_engine=engine)
    await engine.dispose()


def message(number: int) -> ChatMessage:
    return ChatMessage(role="user", content=str(number), additional_kwargs={"number": number})


def numbers(messages: list[ChatMessage]) -> list[int]:
    return [one.additional_kwargs["number"] for one in messages]


async def test_the_chat_store_of_a_process_answers_as_upstreams_does(chat_store: AsyncDBChatStore) -> None:
    await chat_store.add_message("a", message(0))
    await chat_store.add_messages("a", [message(number) for number in range(1, 6)])
    await chat_store.add_message("b", message(9), status=MessageStatus.ARCHIVED)
    assert numbers(await chat_store.archive_oldest_messages("a", 2)) == [0, 1]
    assert numbers(await chat_store.get_messages("a")) == [2, 3, 4, 5]
    assert numbers(await chat_store.get_messages("a", status=MessageStatus.ARCHIVED)) == [0, 1]
    assert numbers(await chat_store.get_messages("a", status=None, limit=2, offset=1)) == [1, 2]
    assert numbers(await chat_store.get_messages("b")) == []
    assert (await chat_store.count_messages("a"), await chat_store.count_messages("a", status=None)) == (4, 6)
    assert numbers(await chat_store.delete_oldest_messages("a", 1)) == [2]
    assert await chat_store.delete_message("a", 99) is None
    deleted = await chat_store.delete_message("a", 4)
    assert deleted is not None
    assert numbers([deleted]) == [3]
    assert sorted(await chat_store.get_keys()) == ["a", "b"]
    await chat_store.delete_messages("a", status=MessageStatus.ARCHIVED)
    assert numbers(await chat_store.get_messages("a", status=None)) == [4, 5]
    await chat_store.set_messages("a", [message(7)])
    assert numbers(await chat_store.get_messages("a", status=None)) == [7]
    await chat_store.delete_messages("a")
    assert await chat_store.get_keys() == ["b"]


async def test_what_it_returns_is_not_what_it_keeps() -> None:
    store = ProcessChatStore()
    await store.add_message("a", USER)
    (await store.get_messages("a"))[0].blocks.clear()
    assert [one.content for one in await store.get_messages("a")] == ["I like tea."]


def test_what_is_no_chat_store_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="AsyncDBChatStore"):
        bind_chat_store("a name", object())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError):
        bind_chat_store(" ", ProcessChatStore())


# --- a database in memory -----------------------------------------------------------------------------------------


async def test_many_runs_at_once_lose_nothing_in_a_chat_store_that_is_in_memory(named: str) -> None:
    """All sessions of such a database share one connection, where the end of one undoes what another has written."""
    session, model = learning()
    store = SQLAlchemyChatStore("chat")
    bind_session(named, session)
    memories = [memory_of(session, named, session_id="s", chat_store=store)]
    memories.append(memory_of(session, f"{named} again", session_id="s", chat_store=store))  # with an owner of its own
    said = [f"I like tea of kind {place}." for place in range(12)]
    runs = [function_agent().run(text, memory=memories[place % 2]) for place, text in enumerate(said)]
    redacted = [aredact_chat_store(memories[0].sql_store, "s", record_ids=[], texts=["a secret"]) for _ in range(4)]
    await asyncio.gather(*runs, *redacted)
    texts = [message.content for message in await memories[0].aget_all()]
    assert sorted(text for text in texts if text != "done") == sorted(said)
    assert texts.count("done") == 12
    assert sorted(await known(session)) == sorted(said)
    assert sorted(read_by(model)) == sorted(said)
    await asyncio.to_thread(run_sync, store._async_engine.dispose())


@pytest.mark.parametrize("mark", ["<versioned_memory>", "</versioned_memory>"])
async def test_a_record_that_holds_a_mark_does_not_keep_what_was_recalled_beside_it_in_the_chat(
    named: str, mark: str
) -> None:
    session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
    await session.remember("the zebra is a secret")
    await session.remember(f"zebra: the tag is {mark}")
    memory = VersionedMemory.from_session(session, binding=named, insert_method="user", extract="off")
    await memory.aput(ChatMessage("what zebra?", role="user"))
    shown = await memory.aget()
    assert "secret" in str([one.content for one in shown])
    await memory.aset([ChatMessage(one.content, role=one.role) for one in shown])
    assert "secret" not in str([one.content for one in await memory.aget_all()])
