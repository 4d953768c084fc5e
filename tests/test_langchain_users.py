"""One compiled agent, many users at once: each run sees its own memory, and a run without a user sees none."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import create_retriever_tool
from langchain_fakes import agent_of, answers, asked, calling, in_thread, tool_call
from langgraph.checkpoint.memory import InMemorySaver

from vmem_core import MemorySession, Scope, SqliteStore
from vmem_langchain import MemoryRequest, MemoryRetriever, create_memory_tools

USERS = [f"user-{number}" for number in range(6)]


@dataclass
class Context:
    user_id: str


def said(messages: list[Any]) -> str:
    return str(next(message.content for message in messages if message.type == "human"))


def remember_what_was_said(messages: list[Any]) -> AIMessage:
    return calling(tool_call("memory_remember", {"text": f"The secret is {said(messages)}."}, "call_1"))


SCRIPT = [remember_what_was_said, calling(tool_call("memory_recall", {"query": "secret"}, "call_2"))]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = SqliteStore(tmp_path / "memory.db")
    yield opened
    opened.sync.close()


@pytest.fixture(params=["configurable", "context"])
def resolver(request: pytest.FixtureRequest, store: Any) -> Any:
    """A host's resolver: it takes the user from where the host put it, and knows no default."""

    def from_config(asked_for: MemoryRequest) -> MemorySession:
        return MemorySession(store, Scope(user_id=asked_for.config["configurable"]["user_id"]))

    async def from_context(asked_for: MemoryRequest) -> MemorySession:
        return MemorySession(store, Scope(user_id=asked_for.context.user_id))

    return from_config if request.param == "configurable" else from_context


def run_of(user: str, resolver: Any) -> dict[str, Any]:
    """The arguments of a user's run."""
    if resolver.__name__ == "from_config":
        return {"config": in_thread(f"thread of {user}", user_id=user)}
    return {"config": in_thread(f"thread of {user}"), "context": Context(user)}


def check_answers(results: list[Any], store: Any) -> None:
    for user, result in zip(USERS, results, strict=True):
        remembered, recalled = answers(result)
        assert remembered["replayed"] is False
        assert [found["text"] for found in recalled] == [f"The secret is {user}."]
        assert [found["id"] for found in recalled] == [remembered["id"]]
    assert store.sync.scopes() == [Scope(user_id=user) for user in USERS]


def test_users_in_threads_see_only_their_own(store: Any, resolver: Any) -> None:
    together = threading.Barrier(len(USERS), timeout=60)

    def meeting(asked_for: MemoryRequest) -> Any:
        together.wait()  # every user's call is under way before any is answered
        return resolver(asked_for)

    agent = agent_of(create_memory_tools(meeting), *SCRIPT, checkpointer=InMemorySaver(), context_schema=Context)
    with ThreadPoolExecutor(len(USERS)) as pool:
        runs = [pool.submit(agent.invoke, asked(user), **run_of(user, resolver)) for user in USERS]
        check_answers([run.result() for run in runs], store)


async def test_users_in_tasks_see_only_their_own(store: Any, resolver: Any) -> None:
    together = asyncio.Barrier(len(USERS))

    async def meeting(asked_for: MemoryRequest) -> Any:
        await together.wait()
        found = resolver(asked_for)
        return await found if asyncio.iscoroutine(found) else found

    agent = agent_of(create_memory_tools(meeting), *SCRIPT, checkpointer=InMemorySaver(), context_schema=Context)
    runs = [agent.ainvoke(asked(user), **run_of(user, resolver)) for user in USERS]
    check_answers(await asyncio.gather(*runs), store)


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_run_without_a_user_has_no_memory(store: Any, resolver: Any, way: str) -> None:
    MemorySession(store, Scope(user_id=USERS[0])).sync.remember("The secret is old.")
    agent = agent_of(create_memory_tools(resolver), *SCRIPT, checkpointer=InMemorySaver(), context_schema=Context)
    run = in_thread("t1")
    result = agent.invoke(asked("mine"), run) if way == "sync" else await agent.ainvoke(asked("mine"), run)
    assert answers(result) == [{"error": "no_session"}, {"error": "no_session"}]
    assert result["messages"][-1].content == "done"
    assert store.sync.scopes() == [Scope(user_id=USERS[0])]


def test_a_run_that_is_resumed_without_its_context_has_no_memory(store: Any) -> None:
    def resolver(asked_for: MemoryRequest) -> MemorySession | None:
        return MemorySession(store, Scope(user_id=asked_for.context.user_id))

    agent = agent_of(
        create_memory_tools(resolver), *SCRIPT, checkpointer=InMemorySaver(), context_schema=Context,
        interrupt_before=["tools"],
    )  # fmt: skip
    agent.invoke(asked("mine"), in_thread("t1"), context=Context("ada"))
    result = agent.invoke(None, in_thread("t1"))
    assert answers(result) == [{"error": "no_session"}]
    assert store.sync.scopes() == []

    resumed = agent.invoke(None, in_thread("t1"), context=Context("ada"))
    assert answers(resumed)[1] == []  # with its context it has its own again


def test_a_retriever_as_a_tool_sees_the_runs_user_too(store: Any, resolver: Any) -> None:
    for user in USERS:
        MemorySession(store, Scope(user_id=user)).sync.remember(f"The secret is {user}.")
    lookup = create_retriever_tool(MemoryRetriever(session=resolver), "lookup", "Look something up.")
    call = calling(tool_call("lookup", {"query": "secret"}))
    agent = agent_of([lookup], call, checkpointer=InMemorySaver(), context_schema=Context)
    for user in USERS[:2]:
        result = agent.invoke(asked(user), **run_of(user, resolver))
        assert result["messages"][-2].content == f"The secret is {user}."
