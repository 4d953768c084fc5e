"""What the memory tools take and what they answer, called as LlamaIndex calls a tool, with no agent around."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.agent.workflow import CodeActAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool, ToolMetadata, ToolOutput
from llama_index.core.tools.calling import acall_tool, call_tool
from llama_index.core.tools.tool_spec.base import BaseToolSpec
from tool_suite import *  # noqa: F403 - its tests run here
from tool_suite import TEXT, Answer, Call, assert_refused

from vmem_core import InvalidRequestError, MemorySession
from vmem_llamaindex import MemoryRequest, MemoryToolSpec, create_memory_tools, tool_call_scope


@pytest.fixture
def logger() -> str:
    return "vmem_llamaindex"


@pytest.fixture(params=["sync", "async"])
def use(request: pytest.FixtureRequest) -> Callable[..., ToolOutput]:
    """Call a tool, sync or async, in a call that has an id."""

    def call(tool: FunctionTool, args: dict[str, Any], call_id: str = "call_1") -> ToolOutput:
        with tool_call_scope(tool_call_id=call_id, execution_id="job-1"):
            return tool(**args) if request.param == "sync" else asyncio.run(tool.acall(**args))

    return call


def tools_of(session: Any, **more: Any) -> dict[str, FunctionTool]:
    return {tool.metadata.get_name().removeprefix("memory_"): tool for tool in create_memory_tools(session, **more)}


def read(output: ToolOutput) -> Any:
    return json.loads(output.content)


@pytest.fixture
def call(use: Callable[..., ToolOutput]) -> Call:
    """Call a tool as the suite does."""

    def answer(session: Any, kind: str, args: dict[str, Any], call_id: str = "call_1", **more: Any) -> Answer:
        output = use(tools_of(session, **more)[kind], args, call_id)
        assert output.tool_name == f"memory_{kind}"
        assert output.model_dump_json()  # it can be saved with a context, whatever a model wrote
        assert not output.is_error or output.raw_output == read(output)
        return Answer(output.content, output.raw_output, output.is_error)

    return answer


# --- ways to call -------------------------------------------------------------------------------------------------


async def test_sync_tools_work_while_a_loop_runs(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"](text=TEXT))["id"] == "r1"
    assert read(await tools["recall"].acall(query="tea"))[0]["id"] == "r1"


def test_one_tool_serves_many_loops(session: MemorySession) -> None:
    tools = tools_of(session)
    for text in ("one", "two"):
        asyncio.run(tools["remember"].acall(text=text))
    assert session.sync.count() == 2


def test_a_function_of_a_tool_answers_data(session: MemorySession) -> None:
    tools = tools_of(session)
    assert tools["remember"].fn(text=TEXT)["id"] == "r1"
    assert asyncio.run(tools["recall"].async_fn(query="tea"))[0]["text"] == TEXT
    assert tools["recall"].fn(top_k=3) == {"error": "invalid_request", "detail": "query"}


async def test_what_calls_a_tool_for_a_model_calls_it_once(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(call_tool(tools["remember"], {"text": TEXT}))["id"] == "r1"
    assert read(await acall_tool(tools["remember"], {"text": "Ada sails."}))["id"] == "r2"
    assert read(await acall_tool(tools["remember"], {"fact": "Ada sings."}))["error"] == "invalid_request"
    assert await session.scope_revision() == 2


def test_a_plain_string_is_taken_for_the_first_argument(session: MemorySession) -> None:
    tools = tools_of(session)
    assert read(tools["remember"]("half a pair: \ud800"))["id"] == "r1"
    assert read(tools["recall"]("half pair"))[0]["text"] == "half a pair: \ufffd"


def test_a_tool_does_not_show_whose_memory_it_has(session: MemorySession) -> None:
    assert "ada" not in repr(create_memory_tools(session))


# --- making them --------------------------------------------------------------------------------------------------


def test_the_tools_a_model_is_offered_and_their_arguments(session: MemorySession) -> None:
    offered = [tool.metadata.to_openai_tool()["function"] for tool in create_memory_tools(session)]
    assert {tool["name"]: sorted(tool["parameters"]["properties"]) for tool in offered} == {
        "memory_remember": ["importance", "kind", "text"],
        "memory_recall": ["kind", "query"],
        "memory_revise": ["expected_revision", "id", "importance", "kind", "text"],
        "memory_retract": ["expected_revision", "id"],
    }
    assert [tool["parameters"]["required"] for tool in offered] == [
        ["text"], ["query"], ["id", "expected_revision"], ["id", "expected_revision"]
    ]  # fmt: skip
    assert all(50 < len(tool["description"]) < 1024 for tool in offered)
    assert not any(tool.requires_context or tool.metadata.return_direct for tool in create_memory_tools(session))


def test_a_subset_and_another_prefix_can_be_chosen(session: MemorySession) -> None:
    tools = create_memory_tools(session, include=["recall", "remember"], prefix="notes")
    assert [tool.metadata.name for tool in tools] == ["notes_remember", "notes_recall"]
    tools[0](text=TEXT)
    assert session.sync.get("r1").sources[0].tool_name == "notes_remember"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"include": ["recall", "forget"]}, "include"),
        ({"include": "recall"}, "include"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "x" * 56}, "prefix"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"session_or_resolver": None}, "session_or_resolver"),
        ({"session_or_resolver": "ada"}, "session_or_resolver"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_path(session: MemorySession, arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        create_memory_tools(**({"session_or_resolver": session} | arguments))
    assert refused.value.path == path


# --- the tool spec ------------------------------------------------------------------------------------------------


def test_a_tool_spec_gives_the_same_tools(session: MemorySession) -> None:
    spec = MemoryToolSpec(session, top_k=1)
    assert isinstance(spec, BaseToolSpec)
    tools = {tool.metadata.name: tool for tool in spec.to_tool_list()}
    assert list(tools) == spec.spec_functions
    for text in (TEXT, "Ada hates white tea."):
        tools["memory_remember"](text=text)
    assert len(read(tools["memory_recall"](query="tea"))) == 1
    assert read(tools["memory_retract"](id="r9", expected_revision=1)) == {"error": "not_found"}


def test_a_tool_of_a_spec_can_be_described_anew_and_keeps_its_schema(session: MemorySession) -> None:
    told = ToolMetadata("Write it down.", "note", fn_schema=None, return_direct=True)
    [tool] = MemoryToolSpec(session).to_tool_list(["memory_remember"], {"memory_remember": told})
    assert (tool.metadata.name, tool.metadata.description, tool.metadata.return_direct) == (
        "note", "Write it down.", True
    )  # fmt: skip
    assert "text" in tool.metadata.get_parameters_dict()["properties"]
    assert read(tool(text=TEXT, scope="bob")) == {"error": "invalid_request", "detail": "scope"}
    tool(text=TEXT)
    assert session.sync.get("r1").sources[0].tool_name == "note"


async def test_the_functions_of_a_spec_answer_data(session: MemorySession) -> None:
    spec = MemoryToolSpec(session)
    written = await spec.memory_remember(TEXT)
    assert (await spec.memory_recall("tea"))[0]["text"] == TEXT
    revised = await spec.memory_revise(written["id"], 1, importance=1.0)
    assert await spec.memory_retract(written["id"], 1) == {"error": "revision_conflict", "actual_revision": 2}
    assert (await spec.memory_retract(written["id"], revised["revision"]))["status"] == "retracted"


def test_a_spec_refuses_what_it_does_not_have(session: MemorySession) -> None:
    with pytest.raises(InvalidRequestError, match="must be names among memory_remember"):
        MemoryToolSpec(session).to_tool_list(["memory_forget"])
    with pytest.raises(InvalidRequestError, match=r"session: must be"):
        MemoryToolSpec(session.sync)


# --- whose memory: resolvers --------------------------------------------------------------------------------------


def resolvers(session: MemorySession | None) -> dict[str, Any]:
    """The same resolver in every form that a host may give it."""

    async def of_async(request: MemoryRequest) -> MemorySession | None:
        return session

    class Callable_:
        async def __call__(self, request: MemoryRequest) -> MemorySession | None:
            return session

    return {"sync": lambda request: session, "async": of_async, "object": Callable_(), "mixed": lambda r: of_async(r)}


@pytest.mark.parametrize("form", ["sync", "async", "object", "mixed"])
def test_a_resolver_in_any_form_finds_the_session(session: MemorySession, call: Call, form: str) -> None:
    assert call(resolvers(session)[form], "remember", {"text": TEXT}).data["id"] == "r1"
    assert_refused(call(resolvers(None)[form], "remember", {"text": TEXT}), error="no_session")


def test_a_resolver_that_raises_or_returns_something_else_finds_no_session(
    session: MemorySession, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(request: MemoryRequest) -> MemorySession:
        raise KeyError("a secret")

    for resolver in (raises, lambda request: "ada", lambda request: session.sync):
        assert_refused(call(resolver, "recall", {"query": "tea"}), error="no_session")
    assert [record.message for record in caplog.records] == [
        f"memory_recall: the resolver failed with {name}"
        for name in ("KeyError", "InvalidRequestError", "InvalidRequestError")
    ]


def test_outside_of_a_workflow_a_resolver_is_told_of_no_context(session: MemorySession, use: Any) -> None:
    asked: list[MemoryRequest] = []
    use(tools_of(lambda request: asked.append(request) or session)["recall"], {"query": "tea"})
    assert asked == [MemoryRequest(context=None, binding=None)]


# --- an agent that writes code ------------------------------------------------------------------------------------


async def test_an_agent_that_writes_code_is_shown_the_tools_as_they_are_called(session: MemorySession) -> None:
    tools = create_memory_tools(session)
    written = [
        '<execute>memory_remember("Ada likes tea.", importance=0.5)</execute>',
        '<execute>memory_recall("tea")[0]["text"]</execute>',
        "Ada likes tea.",
    ]
    shown: list[str] = []

    def reply(messages: Any, **more: Any) -> ChatMessage:
        shown.append(str(messages[0].content))
        return ChatMessage(role="assistant", content=written[len(shown) - 1])

    found: list[Any] = []

    def execute(code: str) -> str:
        found.append(eval(code, {tool.real_fn.__name__: tool.real_fn for tool in tools}))
        return str(found[-1])

    llm = MockFunctionCallingLLM(is_chat_model=True, response_generator=reply)
    await CodeActAgent(code_execute_fn=execute, tools=tools, llm=llm).run("Which tea?")
    assert "def memory_retract(id: str, expected_revision: int):" in shown[0]
    assert "def memory_remember(text: str, kind: Optional[Literal[" in shown[0]
    assert "importance: float | None = None):" in shown[0]
    assert "object at" not in shown[0]
    assert "0x" not in shown[0]
    assert (found[0]["status"], found[1]) == ("active", "Ada likes tea.")
