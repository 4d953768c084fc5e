"""What the memory tools take and what they answer, with LangChain's core alone: no graph, no agent."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_fakes import read, tool_call
from tool_suite import *  # noqa: F403 - its tests run here
from tool_suite import TEXT, Answer, Call, assert_refused

from vmem_core import InMemoryStore, InvalidRequestError, MemorySession, Scope
from vmem_langchain import MemoryRequest, create_memory_tools


@pytest.fixture
def logger() -> str:
    return "vmem_langchain"


@pytest.fixture(params=["sync", "async"])
def use(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call a tool, sync or async, with a call that has an id, and get its message."""

    def call(tool: BaseTool, args: dict[str, Any], call_id: str = "call_1") -> ToolMessage:
        given = tool_call(tool.name, args, call_id)
        message = tool.invoke(given) if request.param == "sync" else asyncio.run(tool.ainvoke(given))
        assert isinstance(message, ToolMessage)
        return message

    return call


def tools_of(session: Any, **more: Any) -> dict[str, BaseTool]:
    return {tool.name.removeprefix("memory_"): tool for tool in create_memory_tools(session, **more)}


@pytest.fixture
def call(use: Callable[..., Any]) -> Call:
    """Call a tool as the suite does."""

    def answer(session: Any, kind: str, args: dict[str, Any], call_id: str = "call_1", **more: Any) -> Answer:
        message = use(tools_of(session, **more)[kind], args, call_id)
        assert (message.name, message.tool_call_id) == (f"memory_{kind}", call_id)
        return Answer(message.content, message.artifact, message.status == "error")

    return answer


def test_a_call_without_an_id_is_answered_by_text_refusals_too(session: MemorySession) -> None:
    tools = tools_of(session)
    assert tools["retract"].invoke({"id": "r1", "expected_revision": 1}) == '{"error":"not_found"}'
    assert tools["remember"].invoke({"text": " "}) == '{"error":"invalid_request","detail":"text"}'


# --- ways to call -------------------------------------------------------------------------------------------------


def test_outside_a_graph_each_call_is_a_new_operation(session: MemorySession, use: Any) -> None:
    tools = tools_of(session)
    for text in ("one", "two", "three"):
        assert read(use(tools["remember"], {"text": text}, "123"))["replayed"] is False
    again = read(use(tools["remember"], {"text": "three"}, "123"))
    assert (again["replayed"], again["already_stored"]) == (False, True)
    assert session.sync.count() == 3


async def test_sync_tools_work_while_a_loop_runs(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"].invoke({"text": TEXT}))["id"] == "r1"
    assert read(await tools["recall"].ainvoke({"query": "tea"}))[0]["id"] == "r1"


def test_plain_strings_and_batches_are_taken(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"].invoke("half a pair: \ud800"))["id"] == "r1"
    assert read(tools["recall"].invoke("half pair"))[0]["text"] == "half a pair: \ufffd"
    found = tools["recall"].batch([{"query": "pair"}] * 4)
    assert [read(one)[0]["id"] for one in found] == ["r1"] * 4


def test_one_tool_serves_many_loops(session: MemorySession) -> None:
    tools = tools_of(session)
    for text in ("one", "two"):
        asyncio.run(tools["remember"].ainvoke({"text": text}))
    assert session.sync.count() == 2


def test_tools_can_be_copied_and_pickled() -> None:
    tool = tools_of(no_session_at_all)["recall"]
    for copied in (tool.model_copy(), tool.model_copy(deep=True), pickle.loads(pickle.dumps(tool))):
        assert read(copied.invoke({"query": "tea"})) == {"error": "no_session"}


def no_session_at_all(request: MemoryRequest) -> None:
    return None


def test_a_tool_does_not_show_whose_memory_it_has(session: MemorySession) -> None:
    for tool in create_memory_tools(session):
        assert "ada" not in repr(tool)
        assert "source" not in tool.model_dump(exclude={"args_schema"})


def test_tools_need_neither_langchain_nor_langgraph() -> None:
    code = """
import sys
sys.modules["langchain"] = sys.modules["langgraph"] = None
from vmem_core import InMemoryStore, MemorySession, Scope
from vmem_langchain import MemoryRetriever, create_memory_tools
session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
remember, recall, *_ = create_memory_tools(lambda request: session)
remember.invoke({"type": "tool_call", "name": "memory_remember", "id": "1", "args": {"text": "tea"}})
print(len(MemoryRetriever(session=lambda request: session).invoke("tea")), recall.invoke({"query": "tea"})[:7])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ('1 [{"id":\n', "")


# --- making them --------------------------------------------------------------------------------------------------


def test_the_tools_a_model_is_offered_and_their_arguments(session: MemorySession) -> None:
    offered = [convert_to_openai_tool(tool)["function"] for tool in create_memory_tools(session)]
    assert {tool["name"]: sorted(tool["parameters"]["properties"]) for tool in offered} == {
        "memory_remember": ["importance", "kind", "text"],
        "memory_recall": ["kind", "query"],
        "memory_revise": ["expected_revision", "id", "importance", "kind", "text"],
        "memory_retract": ["expected_revision", "id"],
    }
    assert [tool["parameters"]["required"] for tool in offered] == [
        ["text"], ["query"], ["id", "expected_revision"], ["id", "expected_revision"]
    ]  # fmt: skip
    assert all(len(tool["description"]) > 50 for tool in offered)
    assert "runtime" not in json.dumps(
        [tool.get_input_schema().model_json_schema() for tool in tools_of(session).values()]
    )


def test_a_subset_and_another_prefix_can_be_chosen(session: MemorySession) -> None:
    tools = create_memory_tools(session, include=["recall", "remember"], prefix="notes")
    assert [tool.name for tool in tools] == ["notes_remember", "notes_recall"]
    tools[0].invoke({"text": TEXT})
    assert session.sync.get("r1").sources[0].tool_name == "notes_remember"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"include": ["recall", "forget"]}, "include"),
        ({"include": "recall"}, "include"),
        ({"include": [["recall"]]}, "include"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "my memory"}, "prefix"),
        ({"prefix": "x" * 56}, "prefix"),
        ({"prefix": None}, "prefix"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1001}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"session_or_resolver": None}, "session_or_resolver"),
        ({"session_or_resolver": "ada"}, "session_or_resolver"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_path(session: MemorySession, arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        create_memory_tools(**({"session_or_resolver": session} | arguments))
    assert refused.value.path == path


def test_the_sync_side_of_a_session_is_refused_with_a_hint(session: MemorySession) -> None:
    with pytest.raises(InvalidRequestError, match=r"not its \.sync"):
        create_memory_tools(session.sync)


# --- whose memory: resolvers --------------------------------------------------------------------------------------


def user_of(request: MemoryRequest) -> str | None:
    user = request.config.get("configurable", {}).get("user_id")
    return user if isinstance(user, str) else None


def for_user(user: str) -> RunnableConfig:
    return {"configurable": {"user_id": user}}


class Resolvers:
    """The same resolver in every form that a host may give it."""

    def __init__(self, store: InMemoryStore) -> None:
        self.store = store

    def plain(self, request: MemoryRequest) -> MemorySession | None:
        user = user_of(request)
        return MemorySession(self.store, Scope(user_id=user)) if user else None

    async def coroutine(self, request: MemoryRequest) -> MemorySession | None:
        await asyncio.sleep(0)
        return self.plain(request)

    def returning_a_coroutine(self, request: MemoryRequest) -> Any:
        return self.coroutine(request)

    async def __call__(self, request: MemoryRequest) -> MemorySession | None:
        return await self.coroutine(request)


@pytest.mark.parametrize("form", ["plain", "coroutine", "returning_a_coroutine", "__call__"])
async def test_a_resolver_chooses_the_session_of_each_call(form: str) -> None:
    store = InMemoryStore()
    resolvers = Resolvers(store)
    tools = tools_of(resolvers if form == "__call__" else getattr(resolvers, form))
    tools["remember"].invoke({"text": "Ada's secret."}, for_user("ada"))
    await tools["remember"].ainvoke({"text": "Bob's secret."}, for_user("bob"))

    assert [one["text"] for one in read(tools["recall"].invoke({"query": "secret"}, for_user("bob")))] == [
        "Bob's secret."
    ]
    found = read(await tools["recall"].ainvoke({"query": "secret"}, for_user("ada")))
    assert [one["text"] for one in found] == ["Ada's secret."]
    assert read(tools["recall"].invoke({"query": "secret"})) == {"error": "no_session"}
    assert read(await tools["recall"].ainvoke({"query": "secret"})) == {"error": "no_session"}
    assert await store.scopes() == [Scope(user_id="ada"), Scope(user_id="bob")]


@pytest.mark.parametrize("found", ["nothing", "an error", "something else"])
def test_a_resolver_that_fails_leaves_no_session(call: Call, found: str, caplog: pytest.LogCaptureFixture) -> None:
    def resolver(request: MemoryRequest) -> Any:
        if found == "an error":
            raise KeyError("Ada's secret")
        return None if found == "nothing" else "ada"

    with caplog.at_level(logging.DEBUG, logger="vmem_langchain"):
        assert_refused(call(resolver, "recall", {"query": "secret"}), error="no_session")
    assert len(caplog.records) == (0 if found == "nothing" else 1)
    assert "secret" not in caplog.text


def test_a_request_tells_config_context_and_thread(session: MemorySession) -> None:
    seen: list[MemoryRequest] = []

    def resolver(request: MemoryRequest) -> MemorySession:
        seen.append(request)
        return session

    tools = tools_of(resolver)
    tools["recall"].invoke({"query": "tea"}, {"configurable": {"thread_id": 7, "user_id": "ada"}})
    tools["recall"].invoke({"query": "tea"})
    assert [(request.thread_id, request.context) for request in seen] == [("7", None), (None, None)]
    assert seen[0].config["configurable"]["user_id"] == "ada"
