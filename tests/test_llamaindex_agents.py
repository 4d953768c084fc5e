"""What an agent of each kind does with the memory tools, from the model's words to the record and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import ADA, Ids
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.workflow import Context
from llamaindex_fakes import (
    AGENTS,
    Call,
    KeptMemory,
    ScriptedLLM,
    answers,
    outputs,
    recalling,
    remembering,
    revising_what_was_found,
)

from vmem_core import InMemoryStore, MemorySession
from vmem_llamaindex import (
    KnowsItsCalls,
    MemoryToolSpec,
    VersionedAgentWorkflow,
    VersionedFunctionAgent,
    VersionedReActAgent,
    create_memory_tools,
)

TEXT = "Ada likes green tea."


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(InMemoryStore(), ADA, new_id=Ids())


async def run(agent: Any, message: str = "hello", **more: Any) -> Any:
    return await agent.run(message, **{"memory": KeptMemory(), **more})


@pytest.mark.parametrize("kind", list(AGENTS))
async def test_an_agent_remembers_recalls_and_revises(session: MemorySession, kind: str) -> None:
    steps = [
        remembering(TEXT, "call_1"),
        recalling("tea", "call_2"),
        revising_what_was_found("Ada likes black tea.", "call_3"),
        recalling("tea", "call_4"),
    ]
    result = await run(AGENTS[kind](steps, create_memory_tools(session)))

    assert str(result) == "done"
    written, found, revised, found_again = answers(result)
    assert written == {"id": "r1", "revision": 1, "origin": "inferred", "status": "active", "replayed": False}
    assert [(one["id"], one["revision"], one["text"]) for one in found] == [("r1", 1, TEXT)]
    assert (revised["id"], revised["revision"]) == ("r1", 2)
    assert [(one["revision"], one["text"]) for one in found_again] == [(2, "Ada likes black tea.")]
    history = await session.history("r1")
    assert [(one.revision, one.text, one.origin) for one in history] == [
        (1, TEXT, "inferred"), (2, "Ada likes black tea.", "inferred")
    ]  # fmt: skip
    assert [one.tool_name for one in history[1].sources] == ["memory_remember", "memory_revise"]


@pytest.mark.parametrize("kind", list(AGENTS))
async def test_an_agent_is_refused_what_the_host_asserted_and_goes_on(session: MemorySession, kind: str) -> None:
    await session.remember(TEXT)
    steps = [recalling("tea", "call_1"), revising_what_was_found("Ada hates tea."), remembering("Ada sails.", "call_3")]
    result = await run(AGENTS[kind](steps, create_memory_tools(session)))

    assert answers(result)[1] == {"error": "asserted_record"}
    assert [output.is_error for output in outputs(result)] == [False, True, False]
    assert (await session.get("r1")).text == TEXT
    assert (await session.get("r2")).text == "Ada sails."


@pytest.mark.parametrize("kind", list(AGENTS))
async def test_a_refusal_tells_the_model_what_it_needs_to_try_again(session: MemorySession, kind: str) -> None:
    await session.remember(TEXT, origin="inferred")
    await session.revise("r1", importance=1, origin="inferred")

    def stale(found: list[Any]) -> list[Call]:
        return [Call("memory_retract", {"id": "r1", "expected_revision": 1}, "call_1")]

    def again(found: list[Any]) -> list[Call]:
        actual = found[-1]["actual_revision"]
        return [Call("memory_retract", {"id": "r1", "expected_revision": actual}, "call_2")]

    result = await run(AGENTS[kind]([stale, again], create_memory_tools(session)))
    assert answers(result)[0] == {"error": "revision_conflict", "actual_revision": 2}
    assert answers(result)[1]["status"] == "retracted"


@pytest.mark.parametrize("kind", list(AGENTS))
@pytest.mark.parametrize(
    ("args", "detail"),
    [({"fact": TEXT}, "text"), ({"text": TEXT, "scope": "bob"}, "scope"), ({"text": ["a"]}, "text"), ({}, "text")],
)
async def test_arguments_that_a_model_got_wrong_are_answered(
    session: MemorySession, kind: str, args: dict[str, Any], detail: str
) -> None:
    steps = [[Call("memory_remember", args)], remembering(TEXT, "call_2")]
    result = await run(AGENTS[kind](steps, create_memory_tools(session)))
    assert answers(result)[0] == {"error": "invalid_request", "detail": detail}
    assert outputs(result)[0].is_error
    assert answers(result)[1]["id"] == "r1"


@pytest.mark.parametrize("kind", list(AGENTS))
async def test_an_agent_goes_on_with_a_context_that_was_saved(session: MemorySession, kind: str) -> None:
    first = AGENTS[kind]([remembering(TEXT)], create_memory_tools(session))
    context = Context(first)
    await run(first, "I like green tea.", ctx=context)
    saved = json.loads(json.dumps(context.to_dict()))

    second = AGENTS[kind]([(), recalling("tea", "call_2")], create_memory_tools(session))
    result = await second.run("What do I like?", ctx=Context.from_dict(second, saved))
    assert [found["text"] for found in answers(result)[-1]] == [TEXT]
    assert await session.scope_revision() == 1


async def test_agents_that_hand_over_share_a_memory(session: MemorySession) -> None:
    tools = MemoryToolSpec(session).to_tool_list()
    hands_over = [Call("handoff", {"to_agent": "reader", "reason": "done"}, "call_2")]
    writer = FunctionAgent(
        name="writer", description="Writes.", tools=tools, llm=ScriptedLLM([remembering(TEXT), hands_over])
    )
    reads = [(), (), recalling("tea", "call_3")]  # by then the conversation holds two replies
    reader = VersionedFunctionAgent(name="reader", description="Reads.", tools=tools, llm=ScriptedLLM(reads))
    result = await run(VersionedAgentWorkflow(agents=[writer, reader], root_agent="writer"), memory=WholeMemory())
    assert (await session.get("r1")).sources[0].tool_call_id == "call_1"
    assert result.current_agent_name == "reader"
    assert [found["text"] for found in json.loads(outputs(result)[-1].content)] == [TEXT]


class WholeMemory(KeptMemory):
    """Gives back every message, calls and results too."""

    def get(self, input: Any = None, **kwargs: Any) -> list[Any]:
        return self.messages


def test_our_agents_are_the_frameworks_own() -> None:
    for ours, theirs in (
        (VersionedFunctionAgent, FunctionAgent),
        (VersionedReActAgent, ReActAgent),
        (VersionedAgentWorkflow, AgentWorkflow),
    ):
        assert issubclass(ours, KnowsItsCalls)
        assert issubclass(ours, theirs)
        assert {"init_run", "call_tool"} <= set(dir(ours))


async def test_a_workflow_can_be_made_of_tools_alone(session: MemorySession) -> None:
    workflow = VersionedAgentWorkflow.from_tools_or_functions(
        create_memory_tools(session), llm=ScriptedLLM([remembering(TEXT)])
    )
    assert isinstance(workflow, VersionedAgentWorkflow)
    await run(workflow)
    assert (await session.get("r1")).sources[0].tool_call_id == "call_1"
