"""Tenants with a store each, whose users have equal names: none gets the memory or the chat of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.workflow import Context
from llamaindex_memory_fakes import as_json, begin_process, function_agent, known, learning, memory_of, shown

from vmem_core import InMemoryStore, InvalidRequestError, MemorySession, Scope, SqliteStore
from vmem_llamaindex import MemoryRequest, VersionedMemory, bind_session
from vmem_llamaindex.memory_history import ProcessChatStore

USER = Scope(user_id="1")


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the adapter as new as in a process that has just started."""
    return lambda: begin_process(monkeypatch)


def says(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


async def test_a_name_of_one_tenant_is_refused_to_another_with_an_equal_scope(named: str) -> None:
    one, other = learning(USER)[0], learning(USER)[0]
    await other.remember("Tea is for tenant two.", supersede="add")
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(one, named), ctx=ctx)
    with pytest.raises(InvalidRequestError, match="another store") as caught:
        memory_of(other, named)
    assert caught.value.path == "binding"
    await agent.run("Who likes tea?", ctx=ctx)
    assert await known(one) == ["I like tea.", "Who likes tea?"]
    assert await known(other) == ["Tea is for tenant two."]
    assert "tenant two" not in as_json([message.content for call in shown(agent) for message in call])


async def test_a_context_of_one_tenant_is_refused_when_its_name_was_bound_to_another(named: str) -> None:
    one, (other, _) = learning(USER)[0], learning(USER)
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(one, named), ctx=ctx)
    bind_session(named, other)
    calls = len(shown(agent))
    with pytest.raises(ValueError, match="stands for an equal scope in another store"):
        await agent.run("I live in Paris.", ctx=Context.from_dict(agent, json.loads(json.dumps(ctx.to_dict()))))
    assert len(shown(agent)) == calls
    assert await known(other) == []
    await agent.run("I sail.", memory=memory_of(other, named), ctx=Context(agent))
    assert (await known(one), await known(other)) == (["I like tea."], ["I sail."])


async def test_the_memory_of_another_tenant_is_no_memory_for_a_used_context(named: str) -> None:
    one, other = learning(USER)[0], learning(USER)[0]
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(one, named), ctx=ctx)
    with pytest.raises(InvalidRequestError, match="start with a new Context") as caught:
        await agent.run("I live in Paris.", memory=memory_of(other, f"{named} two"), ctx=ctx)
    assert caught.value.path == "memory"


async def test_a_resolver_for_many_tenants_keeps_their_chats_and_chat_stores_apart(named: str) -> None:
    tenants = [learning(USER)[0] for _ in range(2)]
    found = [tenants[0]]

    def resolver(request: MemoryRequest) -> MemorySession:
        return found[0]

    bind_session(named, resolver)
    stores = [ProcessChatStore(), ProcessChatStore()]
    for given in ({}, {"chat_store": stores[0]}, {"chat_store": stores[1]}):
        memories = [memory_of(one, named, session_id=f"default {given}", **given) for one in tenants]
        for place, memory in enumerate(memories):
            await memory.aput(says(f"I am of tenant {place}."))
        if not given:
            texts = [[message.content for message in await memory.aget_all()] for memory in memories]
            assert texts == [["I am of tenant 0."], ["I am of tenant 1."]]
    restored = VersionedMemory.from_dict(memories[0].to_dict())
    found[0] = tenants[1]
    with pytest.raises(InvalidRequestError, match="another store"):
        await restored.aget_all()


async def test_each_tenant_keeps_the_chat_store_that_was_given_for_it(named: str) -> None:
    tenants, stores = [learning(USER)[0] for _ in range(2)], [ProcessChatStore(), ProcessChatStore()]
    bind_session(named, lambda request: None)
    for session, chat_store in zip(tenants, stores, strict=True):
        memory_of(session, named, session_id="first", chat_store=chat_store)
    for place, session in enumerate(tenants):
        await memory_of(session, named, session_id="later").aput(says(f"I am of tenant {place}."))
    assert [[row["blocks"][0]["text"] for row in store.rows("later")] for store in stores] == [
        ["I am of tenant 0."],
        ["I am of tenant 1."],
    ]


async def test_a_store_that_is_opened_anew_for_the_same_file_is_the_same(named: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    first, again = SqliteStore(tmp_path / "memory.db"), SqliteStore(tmp_path / "link" / "memory.db")
    await memory_of(learning(USER, first)[0], named, session_id="s").aput(says("I like tea."))
    memory = memory_of(learning(USER, again)[0], named, session_id="s")
    assert [message.content for message in await memory.aget_all()] == ["I like tea."]
    assert "memory.db" not in as_json(memory.to_dict())
    for store in (first, again):
        await store.close()


async def test_a_context_goes_on_where_the_store_was_moved_before_the_process_began(
    named: str, another_process: Callable[[], None]
) -> None:
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(learning(USER)[0], named), ctx=ctx)
    data = json.loads(json.dumps(ctx.to_dict()))
    another_process()
    moved, _ = learning(USER, InMemoryStore())
    bind_session(named, moved)
    await agent.run("I live in Paris.", ctx=Context.from_dict(agent, data))
    assert await known(moved) == ["I live in Paris."]
