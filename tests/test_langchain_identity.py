"""Which tool calls are one operation: in agents and graphs, over turns, threads, retries, replays and forks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes import ADA, BOB
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_fakes import (
    DONE,
    ScriptedModel,
    agent_of,
    answers,
    asked,
    calling,
    in_thread,
    remembering,
    tool_call,
    tool_messages,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.runtime import ExecutionInfo
from langgraph.types import Command, interrupt

from vmem_core import InMemoryStore, MemorySession
from vmem_langchain import MemoryRequest, create_memory_tools
from vmem_langchain.identity import operation_id


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(InMemoryStore(), ADA)


@pytest.fixture
def tools(session: MemorySession) -> list[Any]:
    return create_memory_tools(session)


def stored(session: MemorySession) -> list[str]:
    return sorted(record.text for record in session.sync.list().records)


def remember(text: str, call_id: str | None) -> Any:
    return tool_call("memory_remember", {"text": text}, call_id)


# --- the key ------------------------------------------------------------------------------------------------------

MESSAGE = remembering("tea", "call_1", "message-1")
INFO = ExecutionInfo(checkpoint_id="c1", checkpoint_ns="tools:t1", task_id="t1", thread_id="thread-1", run_id="run-1")


def runtime(state: Any = None, info: ExecutionInfo | None = INFO, config: Any = None) -> Any:
    state = {"messages": [MESSAGE]} if state is None else state
    return ToolRuntime(
        state=state, context=None, config=config or {}, stream_writer=print, tool_call_id="call_1", store=None,
        execution_info=info,
    )  # fmt: skip


def key(run: Any, **changed: Any) -> str | None:
    given = {"call_id": "call_1", "tool": "memory_remember", "arguments": {"text": "tea"}, "scope": ADA} | changed
    return operation_id(run, **given)


def test_a_key_is_the_same_whatever_is_new_after_a_crash() -> None:
    resumed = ExecutionInfo(
        checkpoint_id="c2", checkpoint_ns="tools:t2", task_id="t2", thread_id="thread-1", run_id="run-2", node_attempt=3
    )
    config = {"configurable": {"checkpoint_ns": "tools:t2"}, "metadata": {"langgraph_step": 8}}
    assert key(runtime()) == key(runtime(info=resumed, config=config))
    assert key(runtime()) is not None


def test_keys_made_today_are_found_tomorrow() -> None:
    # A change of the key would apply calls that are in flight at an upgrade twice: give it a new version instead.
    assert key(runtime()) == "vmem-op-1:1d1b3ce879d1823fe7b42a3298a28ba64aecf535508ab94e957e83bb1a1b102f"


@pytest.mark.parametrize(
    "changed",
    [
        {"scope": BOB},
        {"tool": "notes_remember"},
        {"run": {"info": dataclasses.replace(INFO, thread_id="thread-2")}},
        {"run": {"state": {"messages": [remembering("tea", "call_1", "message-2")]}}},
        {"run": {"state": {"messages": [remembering("tea", "call_2", "message-1")]}}, "call_id": "call_2"},
    ],
    ids=["scope", "tool", "thread", "message", "call"],
)
def test_a_key_is_another_one_for_another(changed: dict[str, Any]) -> None:
    changed = dict(changed)
    assert key(runtime(**changed.pop("run", {})), **changed) != key(runtime())


def test_arguments_count_only_where_the_id_does_not_tell_calls_apart() -> None:
    other = {"arguments": {"text": "coffee"}}
    assert key(runtime()) == key(runtime(), **other)
    for call_id in ("", "call_1"):
        twice = runtime({"messages": [calling(remember("tea", call_id), remember("coffee", call_id), message_id="m")]})
        assert key(twice, call_id=call_id) == key(twice, call_id=call_id)
        assert key(twice, call_id=call_id) != key(twice, call_id=call_id, **other)


def test_messages_are_found_in_any_form_of_state() -> None:
    @dataclasses.dataclass
    class State:
        chat: list[Any]

    older = remembering("milk", "call_1", "message-0")
    history = [HumanMessage("hi"), older, ToolMessage("{}", tool_call_id="call_1"), MESSAGE]
    forms: list[Any] = [history, {"messages": history}, {"chat": history, "step": 1}, State(history)]
    assert {key(runtime(form)) for form in forms} == {key(runtime())}


def test_without_a_thread_or_a_message_id_the_task_stands_in() -> None:
    no_thread = dataclasses.replace(INFO, thread_id=None)
    nameless = {"messages": [remembering("tea", "call_1")]}
    assert len({key(runtime()), key(runtime(info=no_thread)), key(runtime(nameless))}) == 3
    assert key(runtime(info=no_thread)) == key(runtime(info=no_thread))
    assert key(runtime(info=no_thread, config=in_thread("thread-1"))) == key(runtime())


def test_without_anything_to_know_a_call_by_there_is_no_key() -> None:
    assert key(None) is None
    assert key(runtime(info=None)) is None
    assert key(runtime({"messages": []}, info=None, config=in_thread("thread-1"))) is None


# --- ids of calls in agents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("call_id", [None, "", "call_1"])
@pytest.mark.parametrize("way", ["sync", "async"])
async def test_calls_of_one_message_with_the_same_id_or_none_are_all_applied(
    session: MemorySession, tools: list[Any], call_id: str | None, way: str
) -> None:
    agent = agent_of(tools, calling(remember("tea", call_id), remember("milk", call_id)), checkpointer=InMemorySaver())
    run = in_thread("t1")
    result = agent.invoke(asked(), run) if way == "sync" else await agent.ainvoke(asked(), run)
    assert stored(session) == ["milk", "tea"]
    assert [answer["replayed"] for answer in answers(result)] == [False, False]
    assert result["messages"][-1].content == "done"


def test_a_refusal_of_a_call_without_an_id_ends_no_run(session: MemorySession, tools: list[Any]) -> None:
    calls = [remember(" ", None), tool_call("memory_recall", {"query": "tea", "top_k": 9}, None)]
    result = agent_of(tools, calling(*calls)).invoke(asked())
    assert answers(result) == [
        {"error": "invalid_request", "detail": "text"}, {"error": "invalid_request", "detail": "top_k"}
    ]  # fmt: skip
    assert {message.status for message in tool_messages(result)} == {"error"}
    assert result["messages"][-1].content == "done"


def test_a_model_cannot_forge_its_run(session: MemorySession, tools: list[Any]) -> None:
    forged = {"text": "tea", "runtime": {"context": {"user": "bob"}}}
    agent = agent_of(tools, calling(tool_call("memory_remember", forged)), checkpointer=InMemorySaver())
    assert answers(agent.invoke(asked(), in_thread("t1")))[0]["replayed"] is False
    record = session.sync.list().records[0]
    assert record.sources[0].tool_call_id == "call_1"
    assert record.operation_id.startswith("vmem-op-1:")


def test_an_id_that_comes_again_in_the_next_turn_is_another_call(session: MemorySession, tools: list[Any]) -> None:
    agent = agent_of(tools, remembering("tea"), DONE, remembering("milk"), checkpointer=InMemorySaver())
    for _ in range(2):
        result = agent.invoke(asked(), in_thread("t1"))
    assert stored(session) == ["milk", "tea"]
    assert [answer["replayed"] for answer in answers(result)] == [False, False]


def test_a_cached_reply_in_another_thread_is_another_call(session: MemorySession, tools: list[Any]) -> None:
    model = ScriptedModel(script=[remembering("tea"), DONE], cache=InMemoryCache())
    agent = create_agent(model, tools=tools, checkpointer=InMemorySaver())
    question = HumanMessage("hello", id="question")
    results = [agent.invoke({"messages": [question]}, in_thread(thread)) for thread in ("t1", "t2")]

    replies = [next(m for m in result["messages"] if isinstance(m, AIMessage)) for result in results]
    assert replies[0].id == replies[1].id  # the trap: the same message, the same call
    first, second = (answers(result)[0] for result in results)
    assert first["replayed"] is False
    assert (second["replayed"], second["already_stored"]) == (False, True)
    assert session.sync.scope_revision() == 2


def test_a_wrapper_that_calls_twice_applies_once(session: MemorySession, tools: list[Any]) -> None:
    class Twice(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            handler(request)
            return handler(request)

    agent = agent_of(tools, remembering("tea"), checkpointer=InMemorySaver(), middleware=[Twice()])
    assert answers(agent.invoke(asked(), in_thread("t1")))[0]["replayed"] is True
    assert session.sync.scope_revision() == 1

    without_thread = agent_of(tools, remembering("milk"), middleware=[Twice()])
    assert answers(without_thread.invoke(asked()))[0]["replayed"] is True
    assert session.sync.scope_revision() == 2


# --- time travel --------------------------------------------------------------------------------------------------


def before_the_tools(agent: Any, thread: Any) -> Any:
    return next(state for state in agent.get_state_history(thread) if state.next and state.next[0] == "tools")


def test_a_replay_from_an_old_checkpoint_is_replayed(session: MemorySession, tools: list[Any]) -> None:
    agent = agent_of(tools, remembering("tea"), checkpointer=InMemorySaver())
    first = agent.invoke(asked(), in_thread("t1"))
    again = agent.invoke(None, before_the_tools(agent, in_thread("t1")).config)
    assert answers(again) == [answers(first)[0] | {"replayed": True}]
    assert session.sync.scope_revision() == 1


def test_a_fork_with_an_edited_call_is_refused_as_data(session: MemorySession, tools: list[Any]) -> None:
    agent = agent_of(tools, remembering("tea"), checkpointer=InMemorySaver())
    agent.invoke(asked(), in_thread("t1"))
    old = before_the_tools(agent, in_thread("t1"))
    reply = old.values["messages"][-1]
    edited = reply.model_copy(update={"tool_calls": [remember("coffee", reply.tool_calls[0]["id"])]})

    fork = agent.update_state(old.config, {"messages": [edited]}, as_node="model")
    result = agent.invoke(None, fork)

    assert answers(result) == [{"error": "operation_conflict"}]
    assert tool_messages(result)[0].status == "error"
    assert result["messages"][-1].content == "done"
    assert stored(session) == ["tea"]


# --- graphs of one's own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_tool_node_of_ones_own_works_alike(session: MemorySession, tools: list[Any], way: str) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "tools")
    compiled = graph.compile(checkpointer=InMemorySaver())
    message = calling(remember("tea", "a"), remember("milk", "b"), message_id="message-1")
    for replayed in (False, True):
        given = {"messages": [message]}
        run = in_thread("t1")
        result = compiled.invoke(given, run) if way == "sync" else await compiled.ainvoke(given, run)
        assert [answer["replayed"] for answer in answers(result)[-2:]] == [replayed, replayed]
    assert stored(session) == ["milk", "tea"]


def test_a_subagent_in_a_tool_has_its_own_calls(session: MemorySession, tools: list[Any]) -> None:
    from langchain_core.tools import tool

    child = agent_of(tools, remembering("tea", "call_1"))

    @tool
    def delegate(task: str) -> str:
        """Delegate a task."""
        return str(child.invoke(asked(task))["messages"][-2].content)

    parent = agent_of(
        [*tools, delegate], calling(tool_call("delegate", {"task": "x"}, "call_0")), remembering("milk", "call_1"),
        checkpointer=InMemorySaver(),
    )  # fmt: skip
    found = answers(parent.invoke(asked(), in_thread("t1")))
    assert [answer["replayed"] for answer in found] == [False, False]
    assert stored(session) == ["milk", "tea"]


# --- interrupts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_an_interrupt_in_a_resolver_is_no_failure(session: MemorySession, way: str) -> None:
    def resolver(request: MemoryRequest) -> MemorySession | None:
        return session if interrupt("May I?") == "yes" else None

    agent = agent_of(create_memory_tools(resolver), remembering("tea"), checkpointer=InMemorySaver())

    async def run(given: Any) -> Any:
        thread = in_thread("t1")
        return agent.invoke(given, thread) if way == "sync" else await agent.ainvoke(given, thread)

    paused = await run(asked())
    assert paused["__interrupt__"][0].value == "May I?"
    assert session.sync.count() == 0
    assert answers(await run(Command(resume="yes")))[0]["replayed"] is False
    assert stored(session) == ["tea"]


def test_every_answer_is_stored_as_plain_data(session: MemorySession, tools: list[Any]) -> None:
    saver = InMemorySaver()
    agent = agent_of(tools, remembering("tea"), checkpointer=saver)
    result = agent.invoke(asked(), in_thread("t1"))
    artifact = tool_messages(result)[0].artifact
    assert json.loads(json.dumps(artifact)) == artifact
