"""Which operation a tool call is: what a workflow tells, what a context keeps, what tells calls apart."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fakes import ADA, BOB, Ids
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.agent.workflow.workflow_events import ToolCall as AgentCall
from llama_index.core.agent.workflow.workflow_events import ToolCallResult as AgentCallResult
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool, ToolOutput
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from llamaindex_fakes import (
    AGENTS,
    UPSTREAM,
    Call,
    KeptMemory,
    ScriptedLLM,
    answers,
    outputs,
    recalling,
    remembering,
)
from pydantic import BaseModel
from workflows import Workflow, step
from workflows.errors import WorkflowCancelledByUser, WorkflowRuntimeError
from workflows.events import StartEvent, StopEvent

from vmem_core import InMemoryStore, InvalidRequestError, MemorySession
from vmem_llamaindex import (
    MemoryRequest,
    VersionedAgentWorkflow,
    VersionedFunctionAgent,
    VersionedMemory,
    bind_session,
    create_memory_tools,
    identity,
    prepare_context,
    tool_call_scope,
)
from vmem_llamaindex.binding import bound_session

TEXT = "Ada likes green tea."
KINDS = list(AGENTS)


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(InMemoryStore(), ADA, new_id=Ids())


@pytest.fixture(params=["versioned", "upstream"])
def agents(request: pytest.FixtureRequest) -> Any:
    """Our agents, which know their calls by public means, and LlamaIndex's own, where the runtime must be asked."""
    return AGENTS if request.param == "versioned" else UPSTREAM


async def run(agent: Any, message: str = "hello", **more: Any) -> Any:
    return await agent.run(message, **{"memory": KeptMemory(), **more})


def function_agent(session: MemorySession, *steps: Any, versioned: bool = True, **more: Any) -> Any:
    made = VersionedFunctionAgent if versioned else FunctionAgent
    return made(llm=ScriptedLLM(steps), tools=create_memory_tools(session), **more)


async def operation_ids(session: MemorySession) -> list[str]:
    return [record.operation_id for record in (await session.list(status=None)).records]


# --- the id of a call reaches the tool ----------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_knows_the_id_of_its_call(session: MemorySession, agents: Any, kind: str, streaming: bool) -> None:
    agent = agents[kind]([remembering(TEXT)], create_memory_tools(session), streaming=streaming)
    result = await run(agent)
    [source] = (await session.get("r1")).sources
    assert source.tool_call_id == result.tool_calls[0].tool_id
    assert (await session.get("r1")).operation_id.startswith("vmem-op-1:")


@pytest.mark.parametrize("kind", ["FunctionAgent", "AgentWorkflow"])
async def test_parallel_calls_know_each_their_own(session: MemorySession, agents: Any, kind: str) -> None:
    calls = [Call("memory_remember", {"text": text}, f"call_{text}") for text in ("one", "two", "three")]
    await run(agents[kind]([calls], create_memory_tools(session)))
    cited = {record.text: record.sources[0].tool_call_id for record in (await session.list()).records}
    assert cited == {"one": "call_one", "two": "call_two", "three": "call_three"}
    assert len(set(await operation_ids(session))) == 3


async def test_a_sync_tool_of_the_host_that_calls_ours_knows_it_too(session: MemorySession, agents: Any) -> None:
    [remember] = create_memory_tools(session, include=["remember"])

    def note(text: str) -> ToolOutput:
        """Note it."""
        return remember(text=text)

    agent = agents["FunctionAgent"]([[Call("note", {"text": TEXT}, "call_7")]], [FunctionTool.from_defaults(note)])
    await run(agent, ctx=await prepare_context(Context(agent)))
    record = await session.get("r1")
    assert record.sources[0].tool_call_id == "call_7"
    assert record.operation_id.startswith("vmem-op-1:")


async def test_a_tool_of_the_host_may_call_ours_more_than_once(session: MemorySession, agents: Any) -> None:
    [remember] = create_memory_tools(session, include=["remember"])

    async def note_both(first: str, second: str) -> str:
        """Note both."""
        return " ".join([(await remember.acall(text=text)).content for text in (first, second, first)])

    calls = [Call("note_both", {"first": "one", "second": "two"})]
    await run(agents["FunctionAgent"]([calls], [FunctionTool.from_defaults(async_fn=note_both)]))
    assert [record.text for record in (await session.list()).records] == ["two", "one"]
    assert await session.scope_revision() == 2  # the third is the first one, made again


async def test_a_tool_that_runs_an_agent_lends_it_no_call(session: MemorySession) -> None:
    async def ask_another(question: str) -> str:
        """Ask another agent."""
        inner = UPSTREAM["FunctionAgent"]([remembering(TEXT, "call_inner")], create_memory_tools(session))
        return str(await run(inner, question))

    outer = AGENTS["FunctionAgent"](
        [[Call("ask_another", {"question": "?"}, "call_outer")]], [FunctionTool.from_defaults(async_fn=ask_another)]
    )
    await run(outer)
    assert (await session.get("r1")).sources[0].tool_call_id == "call_inner"


# --- the same call, made twice ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["FunctionAgent", "AgentWorkflow"])
async def test_a_tool_that_waits_for_a_person_runs_twice_and_applies_once(
    session: MemorySession, agents: Any, kind: str
) -> None:
    [remember] = create_memory_tools(session, include=["remember"])
    ran: list[str] = []

    async def confirm(ctx: Context, text: str) -> str:
        """Remember it, and ask whether that is right."""
        ran.append((await remember.acall(text=text)).content)
        answer = await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent())
        return str(answer.response)

    # This module postpones its annotations, which LlamaIndex cannot read.
    confirm.__annotations__ = {"ctx": Context, "text": str}
    agent = agents[kind]([[Call("confirm", {"text": TEXT})]], [FunctionTool.from_defaults(async_fn=confirm)])
    handler = agent.run("hello", memory=KeptMemory())
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            handler.ctx.send_event(HumanResponseEvent(response="yes"))
    await handler
    assert [json.loads(answer)["replayed"] for answer in ran] == [False, True]
    assert await session.scope_revision() == 1


async def test_a_call_made_again_with_other_arguments_is_refused_as_data(session: MemorySession) -> None:
    tools = create_memory_tools(session, include=["remember"])
    for text in (TEXT, "Ada likes coffee."):
        with tool_call_scope(tool_call_id="call_1", execution_id="job-1"):
            output = await tools[0].acall(text=text)
    assert json.loads(output.content) == {"error": "operation_conflict"}
    assert output.is_error
    assert await session.count() == 1


# --- ids that are not of one call alone ---------------------------------------------------------------------------


@pytest.mark.parametrize("call_id", ["memory_remember", "", "call_1"])
async def test_calls_of_one_reply_with_one_id_are_told_apart(session: MemorySession, agents: Any, call_id: str) -> None:
    calls = [Call("memory_remember", {"text": text}, call_id) for text in ("one", "two", "three")]
    for kind in ("FunctionAgent", "AgentWorkflow"):
        result = await run(agents[kind]([calls], create_memory_tools(session)))
        assert not any(output.is_error for output in outputs(result))
    assert sorted(record.text for record in (await session.list()).records) == ["one", "three", "two"]


@pytest.mark.parametrize("call_id", ["memory_remember", "", "call_0"])
async def test_an_id_that_comes_with_every_reply_does_no_harm(
    session: MemorySession, agents: Any, call_id: str
) -> None:
    steps = [remembering(text, call_id) for text in ("one", "two", "one")]
    result = await run(agents["FunctionAgent"](steps, create_memory_tools(session)))
    assert [answer["replayed"] for answer in answers(result)] == [False, False, False]
    assert len({output.raw_output["operation_id"] for output in outputs(result)}) == 3


@pytest.mark.parametrize("call_id", ["memory_revise", "", "call_0"])
async def test_a_value_that_goes_there_and_back_is_applied_three_times(session: MemorySession, call_id: str) -> None:
    await session.remember("x", origin="inferred")

    def revising(revision: int, text: str) -> list[Call]:
        return [Call("memory_revise", {"id": "r1", "expected_revision": revision, "text": text}, call_id)]

    await run(function_agent(session, revising(1, "a"), revising(2, "b"), revising(3, "a")))
    assert [record.text for record in await session.history("r1")] == ["x", "a", "b", "a"]


@pytest.mark.parametrize("call_id", ["memory_remember", "", "call_0"])
async def test_what_was_taken_back_in_between_is_remembered_again(session: MemorySession, call_id: str) -> None:
    steps = [
        remembering(TEXT, call_id),
        lambda found: [Call("memory_retract", {"id": found[-1]["id"], "expected_revision": 1}, "memory_retract")],
        remembering(TEXT, call_id),
    ]
    result = await run(function_agent(session, *steps))
    assert [answer["replayed"] for answer in answers(result)] == [False, False, False]
    assert [record.text for record in (await session.list()).records] == [TEXT]


COUNTED = ["call_0", "call_12", "0", "functions.memory_remember:0", "memory_remember-3", "call1", "", "memory_remember"]
DRAWN = [
    "call_9XkT2mQ0aBzLr4vW",
    "toolu_01A09q90qw90lq917835lq9",
    "D681PevKs",
    "chatcmpl-tool-5f2b8c1d9e7a4f60",
    "f" * 32,
]


@pytest.mark.parametrize("call_id", [*COUNTED, *DRAWN])
async def test_a_counted_id_is_another_call_when_a_restored_run_asks_the_model_anew(
    session: MemorySession, agents: Any, call_id: str
) -> None:
    """The run is saved while the model thinks, writes, and dies. Restored, the model says the same, or another."""
    tools = create_memory_tools(session, include=["remember"])
    saved: list[str] = []

    class Saving(ScriptedLLM):
        def reply(self, messages: Any, **given: Any) -> ChatMessage:
            saved.append(json.dumps(handler.ctx.to_dict()))
            return super().reply(messages, **given)

    agent = agents["FunctionAgent"]([remembering(TEXT, call_id)], tools)
    agent.llm = Saving([remembering(TEXT, call_id)])
    context = await prepare_context(Context(agent))
    handler = agent.run("hello", ctx=context, memory=KeptMemory())
    assert answers(await handler)[0]["replayed"] is False
    found = []
    for text in (TEXT, "Ada has a dog."):
        again = agents["FunctionAgent"]([remembering(text, call_id)], tools)
        [answer] = answers(await again.run(ctx=Context.from_dict(again, json.loads(saved[0]))))
        found.append(answer.get("error") or answer["replayed"])
    assert found == [True, False if call_id in COUNTED else "operation_conflict"]


async def test_the_turns_of_a_conversation_are_told_apart(session: MemorySession, agents: Any) -> None:
    def say(text: str) -> Any:
        return [[Call("memory_remember", {"text": text}, "call_0")]]

    memory, context = KeptMemory(), None
    for number, text in enumerate(("one", "two")):
        agent = agents["FunctionAgent"](say(text) if number == 0 else [(), *say(text)], create_memory_tools(session))
        context = Context(agent) if context is None else Context.from_dict(agent, context.to_dict())
        result = await agent.run(f"remember {text}", ctx=context, memory=memory)
        assert answers(result)[0]["replayed"] is False
    assert await session.count() == 2


class OneCallThenDone(ScriptedLLM):
    """Makes one call in answer to whatever the user says last, each time with another text."""

    def reply(self, messages: Any, **given: Any) -> Any:
        if messages[-1].role == "tool":
            return self.say_done()
        self.seen.append([*messages])
        return self.make_calls(remembering(f"fact {len(self.seen)}", "call_0"))


@pytest.mark.filterwarnings("ignore:Skipping serialization")  # of upstream's memory, which no context keeps
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("memory", ["none", "upstream", "kept"])
async def test_the_same_words_said_again_are_another_turn(
    session: MemorySession, agents: Any, memory: str, prepared: bool
) -> None:
    agent = agents["FunctionAgent"]([], create_memory_tools(session))
    agent.llm = OneCallThenDone([])
    context, given = Context(agent), {}
    if memory != "none":
        given["memory"] = KeptMemory() if memory == "kept" else ChatMemoryBuffer.from_defaults(llm=agent.llm)
    for text in ("yes", "yes", "yes"):
        if prepared:
            await prepare_context(context)
        result = await agent.run(text, ctx=context, **given)
        assert [answer["replayed"] for answer in answers(result)] == [False]
    assert await session.count() == 3


async def test_a_question_at_the_end_of_a_history_is_a_turn_too(
    session: MemorySession, agents: Any, request: pytest.FixtureRequest
) -> None:
    agent = agents["FunctionAgent"]([], create_memory_tools(session))
    agent.llm = OneCallThenDone([])
    context = Context(agent)
    memory = VersionedMemory.from_session(session, binding=request.node.nodeid, extract="off")
    history = [ChatMessage(role=role, content=role) for role in ("user", "assistant", "user")]
    runs: list[dict[str, Any]] = [{"user_msg": "user"}, {"chat_history": history}, {"chat_history": history}]
    for given in runs:
        result = await agent.run(ctx=context, memory=memory, **given)
        assert [answer["replayed"] for answer in answers(result)] == [False]
    assert await session.count() == 3


def handing(*steps: Any, name: str, to: str | None = None) -> FunctionAgent:
    """A member of a workflow that does its steps and hands over."""
    last = [Call("handoff", {"to_agent": to, "reason": "x"}, "call_0")]
    made = [*steps, last] if to else list(steps)
    return FunctionAgent(name=name, description=name, llm=InTurn(made), can_handoff_to=[to] if to else [])


class InTurn(ScriptedLLM):
    """Does its steps one after another, whatever the conversation holds."""

    def reply(self, messages: Any, **given: Any) -> Any:
        self.seen.append([*messages])
        step = self.script[len(self.seen) - 1] if len(self.seen) <= len(self.script) else ()
        return self.make_calls(step(self.answers(messages)) if callable(step) else step) if step else self.say_done()

    def answers(self, messages: Any) -> list[Any]:
        return [json.loads(one.content) for one in messages if one.role == "tool" and one.content.startswith("{")]


@pytest.mark.parametrize("memory", ["upstream", "kept", "versioned"])
@pytest.mark.parametrize("workflow", [AgentWorkflow, VersionedAgentWorkflow])
async def test_calls_of_agents_that_hand_over_are_told_apart(
    session: MemorySession, workflow: Any, memory: str, request: pytest.FixtureRequest
) -> None:
    def retracting(found: list[Any]) -> list[Call]:
        return [Call("memory_retract", {"id": found[-1]["id"], "expected_revision": 1}, "call_0")]

    members = [
        handing(remembering(TEXT, "call_0"), retracting, name="one", to="two"),
        handing(remembering(TEXT, "call_0"), name="two", to="three"),
        handing(remembering("Ada sails.", "call_0"), name="three"),
    ]
    for member in members:
        member.tools = create_memory_tools(session)
    kinds = {
        "upstream": lambda: ChatMemoryBuffer.from_defaults(llm=members[0].llm),
        "kept": KeptMemory,
        "versioned": lambda: VersionedMemory.from_session(session, binding=request.node.nodeid, extract="off"),
    }
    result = await workflow(agents=members, root_agent="one").run("hello", memory=kinds[memory]())
    given = [json.loads(one.content) for one in outputs(result) if one.tool_name != "handoff"]
    assert [answer["replayed"] for answer in given] == [False] * 4
    assert sorted(record.text for record in (await session.list()).records) == [TEXT, "Ada sails."]


@pytest.mark.parametrize("versioned", [True, False])
async def test_a_call_after_a_handoff_that_a_restored_run_makes_again_applies_once(
    session: MemorySession, versioned: bool, request: pytest.FixtureRequest
) -> None:
    kind = VersionedAgentWorkflow if versioned else AgentWorkflow

    def made() -> Any:
        members = [
            handing(remembering("one", "call_0"), name="one", to="two"),
            handing(remembering("two", "call_0"), name="two"),
        ]
        for member in members:
            member.tools = create_memory_tools(session)
        return kind(agents=members, root_agent="one")

    memory = VersionedMemory.from_session(session, binding=request.node.nodeid, extract="off")
    agent, saved = made(), []
    handler = agent.run("hello", memory=memory)
    async for event in handler.stream_events():
        if isinstance(event, AgentCall) and not isinstance(event, AgentCallResult):
            saved.append(json.dumps(handler.ctx.to_dict()))
    await handler
    assert len(saved) == 3
    again = made()
    for member in again.agents.values():
        member.llm.script = []  # the model is not asked for the call once more, and then says that it is done
    result = await again.run(ctx=Context.from_dict(again, json.loads(saved[-1])))
    assert json.loads(outputs(result)[-1].content)["replayed"] is True
    assert await session.count() == 2


# --- executions ---------------------------------------------------------------------------------------------------


async def test_twenty_first_calls_at_once_agree_on_one_execution(
    session: MemorySession, agents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, made = [], identity.context_execution_id

    async def watched(*given: Any) -> Any:
        asked.append(await made(*given))
        return asked[-1]

    monkeypatch.setattr(identity, "context_execution_id", watched)
    calls = [Call("memory_remember", {"text": f"fact {number}"}, f"call_{number}") for number in range(20)]
    agent = agents["FunctionAgent"]([calls], create_memory_tools(session))
    context = Context(agent)
    result = await run(agent, ctx=context)
    assert not any(output.is_error for output in outputs(result))
    assert len(asked) >= 20
    assert set(asked) == {await context.store.get("vmem_execution_id")}
    assert len(set(await operation_ids(session))) == 20


async def test_two_runs_with_contexts_of_their_own_share_no_execution(session: MemorySession, agents: Any) -> None:
    agent = agents["FunctionAgent"]([remembering(TEXT)], create_memory_tools(session))
    contexts = [Context(agent), Context(agent)]
    results = [await run(agent, ctx=context) for context in contexts]
    assert answers(results[1])[0] | {"already_stored": True} == answers(results[1])[0]
    assert answers(results[1])[0]["replayed"] is False
    first, second = [await context.store.get("vmem_execution_id") for context in contexts]
    assert first != second


async def test_the_execution_may_be_named_by_the_host(session: MemorySession, agents: Any) -> None:
    for _ in range(2):
        agent = agents["FunctionAgent"]([remembering(TEXT)], create_memory_tools(session))
        context = await prepare_context(Context(agent), execution_id="job-7")
        await run(agent, ctx=context)
        assert await context.store.get("vmem_execution_id") == "job-7"
    assert await session.count() == 1


async def test_the_hosts_own_chat_memory_stays_the_one_that_the_run_writes_to(
    session: MemorySession, agents: Any
) -> None:
    memory, alone = KeptMemory(), KeptMemory()
    await run(UPSTREAM["FunctionAgent"]([], []), memory=alone)  # older workflows copy it by themselves
    await run(agents["FunctionAgent"]([remembering(TEXT)], create_memory_tools(session)), memory=memory)
    assert [one.content for one in memory.messages if one.content][:1] == [one.content for one in alone.messages][:1]


async def test_a_prepared_context_keeps_its_execution() -> None:
    context = Context(UPSTREAM["FunctionAgent"]([], []))
    await prepare_context(context)
    made = await context.store.get("vmem_execution_id")
    assert len(made) == 32
    assert await (await prepare_context(context)).store.get("vmem_execution_id") == made
    for wrong in ("", " ", 7):
        with pytest.raises(InvalidRequestError, match="execution_id: must be"):
            await prepare_context(context, execution_id=wrong)  # type: ignore[arg-type]


class Typed(BaseModel):
    count: int = 0


class WithRoom(BaseModel):
    vmem_execution_id: str | None = None


def workflow_of(state: type[BaseModel], tool: FunctionTool) -> Workflow:
    """A workflow of the host's, with a state of its own type, that calls a tool."""

    class Own(Workflow):
        async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=json.loads((await tool.acall(text=TEXT)).content))

        begin.__annotations__ = {"ctx": Context[state], "ev": StartEvent, "return": StopEvent}  # noqa: RUF012
        begin = step(begin)

    return Own()


@pytest.mark.parametrize("state", [Typed, WithRoom])
async def test_a_workflow_with_a_state_of_its_own_can_use_the_tools(session: MemorySession, state: Any) -> None:
    workflow = workflow_of(state, create_memory_tools(session, include=["remember"])[0])
    context: Context[Any] = Context(workflow)
    if state is WithRoom:
        await prepare_context(context, execution_id="job-7")
    else:
        with pytest.raises(InvalidRequestError, match="without a field vmem_execution_id"):
            await prepare_context(context)
    assert (await workflow.run(ctx=context))["id"] == "r1"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_chat_memory_gives_any_agent_its_execution_and_turns(
    session: MemorySession, agents: Any, kind: str, request: pytest.FixtureRequest
) -> None:
    memory = VersionedMemory.from_session(session, binding=request.node.name, extract="off")
    agent = agents[kind]([[Call("memory_remember", {"text": TEXT}, "call_0")]], create_memory_tools(session))
    handler = agent.run("Remember it.", memory=memory)
    seen = []
    async for event in handler.stream_events():
        if isinstance(event, AgentCall) and not isinstance(event, AgentCallResult):
            seen.append([await handler.ctx.store.get(key) for key in ("vmem_execution_id", "vmem_turn_id")])
    await handler
    assert len(seen) == 1
    later = agents[kind]([], create_memory_tools(session))
    context = Context.from_dict(later, json.loads(json.dumps(handler.ctx.to_dict())))
    await later.run("Remember it.", ctx=context)  # in the same words
    assert await context.store.get("vmem_execution_id") == seen[0][0]
    assert await context.store.get("vmem_turn_id") != seen[0][1]


# --- where nothing tells ------------------------------------------------------------------------------------------


def said_once(caplog: pytest.LogCaptureFixture) -> bool:
    return [("nothing tells which call this is" in record.message) for record in caplog.records] == [True]


async def test_outside_of_a_workflow_each_call_is_an_operation_and_that_is_said_once(
    session: MemorySession, caplog: pytest.LogCaptureFixture
) -> None:
    remember, recall, *_ = create_memory_tools(session)
    await recall.acall(query="tea")
    assert caplog.records == []
    for _ in range(3):
        output = await remember.acall(text=TEXT)
    assert json.loads(output.content)["replayed"] is False
    assert await session.scope_revision() == 3
    assert said_once(caplog)


@pytest.mark.parametrize("lacking", ["the variable", "the event"])
async def test_where_the_runtime_does_not_tell_our_agents_still_know(
    session: MemorySession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    class Older:
        def get(self, default: Any = None) -> Any:
            return object()

    monkeypatch.setattr(identity, "_RUNTIME_STEP", None if lacking == "the variable" else Older())
    await run(function_agent(session, remembering(TEXT)))
    assert (await session.get("r1")).sources[0].tool_call_id == "call_1"
    assert caplog.records == []

    await run(function_agent(session, remembering("Ada sails."), versioned=False))
    assert (await session.get("r2")).sources[0].tool_call_id is None
    assert said_once(caplog)


def test_a_scope_says_which_call_it_is() -> None:
    session = MemorySession(InMemoryStore(), ADA, new_id=Ids())
    [remember] = create_memory_tools(session, include=["remember"])

    def call(text: str, *, call_id: str = "call_1", execution_id: str = "job-1", turn_id: str = "") -> Any:
        with tool_call_scope(tool_call_id=call_id, execution_id=execution_id, turn_id=turn_id):
            answer = json.loads(remember(text=text).content)
        return answer.get("error") or answer["replayed"]

    assert [call("one"), call("one"), call("two")] == [False, True, "operation_conflict"]
    assert [call("one", execution_id="job-2"), call("one", turn_id="2"), call("one", call_id="call_2")] == [False] * 3
    assert [call("one", call_id=""), call("two", call_id=""), call("two", call_id="")] == [False, False, True]


@pytest.mark.parametrize(
    ("given", "path"),
    [({"tool_call_id": None}, "tool_call_id"), ({"execution_id": " "}, "execution_id"), ({"turn_id": 3}, "turn_id")],
)
def test_a_scope_with_a_wrong_id_is_refused(given: dict[str, Any], path: str) -> None:
    with (
        pytest.raises(InvalidRequestError) as refused,
        tool_call_scope(**{"tool_call_id": "call_1", "execution_id": "job-1", **given}),
    ):
        raise AssertionError("not refused")
    assert refused.value.path == path


# --- whose memory: contexts and bindings --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_one_agent_serves_many_users_by_what_the_host_put_into_the_context(agents: Any, kind: str) -> None:
    store = InMemoryStore()

    async def session_of(request: MemoryRequest) -> MemorySession | None:
        scope = {"ada": ADA, "bob": BOB}.get(await request.context.store.get("user_id", default=None))
        return None if scope is None else MemorySession(store, scope)

    async def ask(user: str | None, steps: Any) -> Any:
        agent = agents[kind](steps, create_memory_tools(session_of))
        context = Context(agent)
        if user is not None:
            await context.store.set("user_id", user)
        return answers(await run(agent, ctx=context))

    await ask("ada", [remembering(TEXT)])
    assert [found["text"] for found in (await ask("ada", [recalling("tea")]))[0]] == [TEXT]
    assert await ask("bob", [recalling("tea")]) == [[]]
    assert await ask(None, [recalling("tea")]) == [{"error": "no_session"}]


async def test_a_resolver_may_pause_the_run(session: MemorySession) -> None:
    async def session_of(request: MemoryRequest) -> MemorySession:
        await request.context.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent())
        return session

    agent = AGENTS["FunctionAgent"]([remembering(TEXT)], create_memory_tools(session_of))
    handler = agent.run("hello", memory=KeptMemory())
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            handler.ctx.send_event(HumanResponseEvent(response="yes"))
    assert answers(await handler)[0]["id"] == "r1"


def test_a_name_that_is_bound_to_nothing_here_says_what_to_do() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"call bind_session\('shop', session\) before the context is restored"
    ):
        bound_session("shop")


def test_a_name_gives_what_it_was_bound_to_last(session: MemorySession) -> None:
    again = MemorySession(session.store, ADA)
    bind_session("of-ada", session)
    bind_session("of-ada", again)
    assert bound_session("of-ada") is again
    with pytest.raises(InvalidRequestError, match="stands for another scope"):
        bind_session("of-ada", MemorySession(session.store, BOB))
    assert bound_session("of-ada") is again

    def resolver(request: MemoryRequest) -> None:
        return None

    bind_session("of-all", resolver)
    assert bound_session("of-all") is resolver


@pytest.mark.parametrize(
    ("name", "bound", "path"),
    [("", None, "binding"), (" ", None, "binding"), (7, None, "binding"), ("x" * 513, None, "binding"),
     ("mine", "ada", "session")],
)  # fmt: skip
def test_a_wrong_binding_is_refused(session: MemorySession, name: Any, bound: Any, path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        bind_session(name, bound or session)
    assert refused.value.path == path


# --- contexts can be saved ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calls",
    [
        remembering(TEXT),
        recalling("tea"),
        [Call("memory_retract", {"id": "r9", "expected_revision": 1})],
        [Call("memory_remember", {"text": 7, "scope": {"a": None}})],
    ],
    ids=["written", "recalled", "refused", "invalid"],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_context_can_be_saved_after_every_answer(session: MemorySession, kind: str, calls: list[Call]) -> None:
    await session.remember("Ada's tea is green.")
    agent = AGENTS[kind]([calls, recalling("green", "call_2")], create_memory_tools(session))
    handler = agent.run("hello", memory=KeptMemory())
    saved = 0
    async for _ in handler.stream_events():
        saved += len(json.dumps(handler.ctx.to_dict())) > 0
    assert saved > 4
    assert len(outputs(await handler)) == 2


async def test_a_store_that_fails_in_an_agent_is_an_answer(
    session: MemorySession, caplog: pytest.LogCaptureFixture
) -> None:
    await session.store.close()
    with caplog.at_level(logging.WARNING, logger="vmem_llamaindex"):
        result = await run(function_agent(session, remembering(TEXT)))
    assert str(result) == "done"
    assert answers(result) == [{"error": "unavailable"}]
    assert outputs(result)[0].is_error
    assert caplog.records[-1].message == "memory_remember: memory failed with StoreUnavailableError"


async def test_a_cancelled_run_leaves_a_call_whole_or_not_at_all_and_the_next_run_goes_on(
    session: MemorySession, agents: Any
) -> None:
    agent = agents["FunctionAgent"]([remembering(TEXT), remembering("Ada sails.")], create_memory_tools(session))
    context, memory = Context(agent), KeptMemory()
    handler = agent.run("hello", ctx=context, memory=memory)
    async for event in handler.stream_events():
        if isinstance(event, AgentCall):
            await handler.cancel_run()
            break
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    written = [record.text for record in (await session.list()).records]
    assert len(written) == await session.scope_revision()

    # The framework makes the cancelled call once more, beside what the model does now: its text is there once.
    result = await agent.run("go on", ctx=context, memory=memory)
    assert str(result) == "done"
    assert not any(output.is_error for output in outputs(result))
    known = [record.text for record in (await session.list()).records]
    assert TEXT in known
    assert sorted(known) == sorted({*written, *known})


async def test_a_run_out_of_iterations_keeps_what_it_wrote_and_the_next_one_goes_on(
    session: MemorySession, agents: Any
) -> None:
    agent = agents["FunctionAgent"]([remembering(TEXT), remembering("Ada sails.")], create_memory_tools(session))
    context, memory = Context(agent), KeptMemory()
    with pytest.raises(WorkflowRuntimeError, match="Max iterations"):
        await agent.run("hello", ctx=context, memory=memory, max_iterations=2)
    assert await session.count() == 1
    await context.store.set("max_iterations", 20)
    assert str(await agent.run("go on", ctx=context, memory=memory)) == "done"
    assert await session.scope_revision() == 1
