"""The chat memory in agents: what is recalled, what is read of a turn and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fake_models import FakeLLM, Gate, facts, obey
from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent
from llama_index.core.agent.workflow.workflow_events import ToolCall
from llama_index.core.base.llms.types import ChatMessage, TextBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.mock import MockFunctionCallingLLM, MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.tools import FunctionTool, QueryEngineTool, RetrieverTool
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from llamaindex_fakes import Call
from llamaindex_memory_fakes import (
    ADA,
    AGENTS,
    FAILED,
    INJECTED,
    LEAKED,
    SECRET,
    TRUSTED,
    UNTRUSTED,
    TalkLLM,
    as_json,
    function_agent,
    known,
    learning,
    react_agent,
    read_by,
    roles,
    search_web,
    shown,
    tools,
)
from pydantic import BaseModel
from workflows.errors import WorkflowCancelledByUser

from vmem_core import ExtractionPolicy, InMemoryStore, InvalidRequestError, MemorySession, UnsupportedError
from vmem_llamaindex import KnowsItsCalls, MemoryRetriever, VersionedFunctionAgent, VersionedMemory, create_memory_tools

ASKED = "Where is my parcel?"
TRUSTED_RESULT = ChatMessage(role="tool", content=SECRET, additional_kwargs={"tool_call_id": "c-trusted"})
HEADING = "Remembered records"


class Script:
    """Replies of a model, one after another."""

    def __init__(self, *texts: str) -> None:
        self.left = list(texts)

    def __call__(self, messages: Any, **given: Any) -> ChatMessage:
        return ChatMessage(role="assistant", content=self.left.pop(0))


@pytest.fixture(params=sorted(AGENTS))
def make_agent(request: pytest.FixtureRequest) -> Any:
    return AGENTS[request.param]


def memory_of(session: MemorySession, named: str, **more: Any) -> VersionedMemory:
    return VersionedMemory.from_session(session, binding=named, **{"on_error": "raise", **more})


# --- what is read -------------------------------------------------------------------------------------------------


async def test_of_a_turn_the_users_words_and_trusted_results_are_read_and_nothing_else(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, trusted_tools={"lookup_order", "broken", "failing_softly", "no_such_tool"})
    calls = [
        TRUSTED,
        UNTRUSTED,
        FAILED,
        Call("failing_softly", {"number": 1}, "c-soft"),
        Call("no_such_tool", {}, "c-unknown"),
        Call("lookup_order", {"wrong": 1}, "c-arguments"),
    ]
    agent = function_agent({ASKED: [calls, "The parcel is on its way."]}, tools())
    await agent.run(ASKED, memory=memory)
    assert read_by(model) == [ASKED, SECRET]
    assert await known(session) == [ASKED, SECRET]
    everything = as_json([prompt.user for prompt in model.prompts])
    for unread in (INJECTED, LEAKED, "on its way", "not found", "missing"):
        assert unread not in everything


async def test_a_trusted_result_cites_its_call(named: str) -> None:
    session, _ = learning()
    agent = function_agent({ASKED: [[TRUSTED]]}, tools())
    await agent.run(ASKED, memory=memory_of(session, named, trusted_tools=["lookup_order"]))
    sources = [record.sources[0] for record in (await session.list()).records]
    assert [(one.kind, one.tool_call_id, one.tool_name) for one in sources] == [
        ("tool", "c-trusted", "lookup_order"),
        ("user", None, None),
    ]


async def test_without_trusted_tools_the_sessions_own_policy_holds(named: str) -> None:
    session, model = learning(extraction=ExtractionPolicy({"lookup_order"}, read_assistant=True))
    agent = function_agent({ASKED: [[TRUSTED], "The parcel is on its way."]}, tools())
    await agent.run(ASKED, memory=memory_of(session, named))
    assert read_by(model) == [ASKED, SECRET]  # the assistant is not read, whatever the policy says


async def test_of_a_react_agent_neither_observations_nor_answers_are_read(named: str) -> None:
    session, model = learning(extraction=ExtractionPolicy(read_assistant=True))
    memory = memory_of(session, named, trusted_tools={"lookup_order", "search_web"})
    agent = react_agent({ASKED: [[TRUSTED], [UNTRUSTED]]}, tools())
    await agent.run(ASKED, memory=memory)
    stored = as_json([one.content for one in await memory.aget_all()])
    assert INJECTED in stored, "the framework keeps what was observed in the assistant's message"
    assert read_by(model) == [ASKED]


class KnowingCodeAct(KnowsItsCalls, CodeActAgent):
    """A class of a host's own with the mixin."""


@pytest.mark.parametrize("kind", [CodeActAgent, KnowingCodeAct])
async def test_the_output_of_code_that_an_agent_ran_is_not_the_users_word(named: str, kind: Any) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    code = "<execute>\nprint(1)\n</execute>"
    llm = MockFunctionCallingLLM(is_chat_model=True, response_generator=Script(code, "done", "You are welcome."))
    agent = kind(code_execute_fn=lambda code: INJECTED, tools=[FunctionTool.from_defaults(search_web)], llm=llm)
    await agent.run(ASKED, memory=memory)
    await agent.run("Thanks.", memory=memory)
    stored = [one for one in await memory.aget_all() if INJECTED in str(one.content)]
    assert roles(stored) == ["user"], "the framework stores it in the user's role"
    assert read_by(model) == [ASKED, "Thanks."]
    assert model.tasks.count("extract") == 2, "it begins no turn"


async def test_what_the_user_says_in_the_words_of_an_observation_is_read(named: str, make_agent: Any) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    agent = make_agent({ASKED: [[UNTRUSTED]]}, tools())
    for said in (ASKED, "observation: I sleep badly since May.", "Bye."):
        await agent.run(said, memory=memory)
    await agent.run(chat_history=[ChatMessage(role="user", content="observation: it is May.")], memory=memory)
    assert read_by(model) == [ASKED, "observation: I sleep badly since May.", "Bye.", "observation: it is May."]


async def test_outside_of_a_run_an_observation_is_the_users_unless_the_assistant_awaits_one(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    acting = "Thought: I look.\nAction: search_web\nAction Input: {}"
    answered = f"{acting}\nObservation: nothing\nThought: I can answer.\nAnswer: Hello."
    for said, answer in ((ASKED, answered), ("Observation: I sleep badly.", acting), (f"Observation: {INJECTED}", "x")):
        await memory.aput(ChatMessage(role="user", content=said))
        await memory.aput(ChatMessage(role="assistant", content=answer))
    assert read_by(model) == [ASKED, "Observation: I sleep badly."]


async def test_turns_that_are_read_together_keep_an_observation_of_the_users_apart(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, extract="manual")
    acting = "Action: search_web\nAction Input: {}\nObservation: nothing\nAnswer: Hello."
    for said in (ASKED, "Observation: I sleep badly."):
        await memory.aput(ChatMessage(role="user", content=said))
        await memory.aput(ChatMessage(role="assistant", content=acting))
    await memory.aflush()
    assert read_by(model) == [ASKED, "Observation: I sleep badly."]


@pytest.mark.parametrize("in_history", [False, True])
@pytest.mark.parametrize("outer", [FunctionAgent, VersionedFunctionAgent])
async def test_the_task_that_a_model_gives_another_agent_is_not_the_users_word(
    named: str, outer: Any, in_history: bool
) -> None:
    session, model = learning()
    earlier = memory_of(session, named, session_id="earlier")

    async def research(task: str) -> str:
        """Lets another agent work."""
        own = earlier if outer is VersionedFunctionAgent else memory_of(session, named, session_id="sub")
        sub = function_agent({task: [[TRUSTED]]}, tools())
        asked = {"chat_history": [ChatMessage(role="user", content=task)]} if in_history else {"user_msg": task}
        return str(await sub.run(**asked, memory=own))

    calls = [[Call("research", {"task": f"{INJECTED} {number}"}, f"c{number}")] for number in range(2)]
    agent = outer(llm=TalkLLM([{ASKED: calls}]), tools=[research])
    await agent.run(ASKED, memory=memory_of(session, named, session_id="main"))
    assert read_by(model) == [ASKED]
    await function_agent().run("Hello.", memory=earlier)
    assert read_by(model) == [ASKED, "Hello."], "the memory itself may serve a user later"


async def test_what_a_tool_puts_into_a_chat_is_not_the_users_word(named: str) -> None:
    session, model = learning()

    def ask_engine(task: str) -> str:
        """Asks a chat engine."""
        engine = SimpleChatEngine.from_defaults(llm=TalkLLM([{}]), memory=other)
        return str(engine.chat(task))

    other = memory_of(session, named, session_id="other")
    agent = function_agent({ASKED: [[Call("ask_engine", {"task": INJECTED}, "c1")]]}, [ask_engine])
    await agent.run(ASKED, memory=memory_of(session, named, session_id="main"))
    assert INJECTED in as_json([one.content for one in await other.aget_all()])
    assert read_by(model) == [ASKED]


@pytest.mark.parametrize("other", ["search_web", "broken"])
async def test_an_id_that_two_calls_share_makes_neither_trusted(named: str, other: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, trusted_tools={"lookup_order"})
    args = {"query": "x"} if other == "search_web" else {"number": 1}
    calls = [Call("lookup_order", {"number": 1}, "same"), Call(other, args, "same")]
    await function_agent({ASKED: [calls]}, tools()).run(ASKED, memory=memory)
    assert read_by(model) == [ASKED]


async def test_a_provider_that_uses_the_tools_name_as_id_is_read_if_it_is_called_once_a_turn(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, trusted_tools={"lookup_order"})
    call = Call("lookup_order", {"number": 1}, "lookup_order")
    agent = function_agent({ASKED: [[call]], "And the other?": [[call]], "All?": [[call], [call]]}, tools())
    ctx = Context(agent)
    for question in (ASKED, "And the other?", "All?"):
        await agent.run(question, memory=memory, ctx=ctx)
    assert read_by(model) == [ASKED, SECRET, "And the other?", SECRET, "All?"]


async def test_results_whose_call_nobody_knows_are_not_read(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, trusted_tools={"lookup_order"})
    call = ChatMessage(role="assistant", blocks=TalkLLM([{}]).make_calls([TRUSTED]).blocks)
    result = ChatMessage(role="tool", content=SECRET, additional_kwargs={"tool_call_id": "c-trusted"})
    await memory.aput(ChatMessage(role="user", content=ASKED))
    await memory.aput_messages([call, result, ChatMessage(role="assistant", content="done")])
    assert read_by(model) == [ASKED]


async def test_answers_of_our_own_tools_are_never_read_whatever_they_are_called(named: str) -> None:
    session, model = learning()
    found = as_json(
        [
            {
                "id": "r1", "revision": 1, "text": "Ada is a spy", "kind": "semantic", "origin": "inferred",
                "source_kinds": ["user"], "status": "active",
            }
        ]
    )  # fmt: skip
    notes = FunctionTool.from_defaults(lambda query: found, name="notes", description="Notes.")
    memory = memory_of(session, named, trusted_tools={"notes"})
    await function_agent({ASKED: [[Call("notes", {"query": "x"}, "c1")]]}, [notes]).run(ASKED, memory=memory)
    assert read_by(model) == [ASKED]


@pytest.mark.parametrize("through", ["tool", "tool of the host", "query engine"])
@pytest.mark.parametrize("restored", [False, True])
async def test_what_came_from_memory_is_not_read_through_whatever_tool_it_comes(
    named: str, through: str, restored: bool
) -> None:
    session, model = learning()
    await session.remember("Ada is a spy.", supersede="add")
    recall = create_memory_tools(session, prefix="notes", include=["recall"])[0]

    def ask(query: str) -> Any:
        """Asks memory."""
        return recall(query=query)

    engine = RetrieverQueryEngine.from_args(MemoryRetriever(session), llm=MockLLM(max_tokens=3))
    made = {
        "tool": (recall, {"query": "zzz"}),  # which finds nothing
        "tool of the host": (FunctionTool.from_defaults(ask), {"query": "zzz"}),
        "query engine": (QueryEngineTool.from_defaults(engine, name="ask", description="x"), {"input": "spy"}),
    }
    tool, arguments = made[through]
    name = tool.metadata.get_name()
    memory = memory_of(session, named, trusted_tools={name})
    agent = function_agent({ASKED: [[Call(name, arguments, "c1")], [UNTRUSTED]]}, [tool, *tools()])
    handler, saved = agent.run(ASKED, memory=memory), ""
    async for event in handler.stream_events():
        if isinstance(event, ToolCall) and event.tool_name == "search_web" and not saved:
            saved = as_json(handler.ctx.to_dict())
            if restored:
                await handler.cancel_run()
                break
    if restored:
        with pytest.raises(WorkflowCancelledByUser):
            await handler
        await agent.run(ctx=Context.from_dict(agent, json.loads(saved)))
    else:
        await handler
    assert [one for one in read_by(model) if one != ASKED] == []


@pytest.mark.parametrize(
    ("returned", "read"),
    [
        ({"städt": "Köln", "n": None, "ok": True}, '{"städt":"Köln","n":null,"ok":true}'),
        ([{"a": 1.5}, []], '[{"a":1.5},[]]'),
        ({"at": {1, 2}}, "{'at': {1, 2}}"),
        ("{'a': 1}", "{'a': 1}"),
    ],
)
async def test_data_of_a_trusted_tool_is_read_as_json(named: str, returned: Any, read: str) -> None:
    session, model = learning()
    look = FunctionTool.from_defaults(lambda number: returned, name="look", description="x")
    memory = memory_of(session, named, trusted_tools={"look"})
    await function_agent({ASKED: [[Call("look", {"number": 1}, "c1")]]}, [look]).run(ASKED, memory=memory)
    assert read_by(model) == [ASKED, read]


async def test_what_our_retriever_found_is_never_read_either(named: str) -> None:
    session, model = learning()
    await session.remember("Ada is a spy.", supersede="add")
    look = RetrieverTool.from_defaults(MemoryRetriever(session), name="look", description="Look.")
    memory = memory_of(session, named, trusted_tools={"look"})
    await function_agent({ASKED: [[Call("look", {"input": "spy"}, "c1")]]}, [look]).run(ASKED, memory=memory)
    assert "Ada is a spy." in as_json([one.content for one in await memory.aget_all()])
    assert read_by(model) == [ASKED]


async def test_a_handoff_is_not_the_end_of_a_turn_nor_is_what_it_says_read(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, trusted_tools={"handoff", "lookup_order"})
    handing = Call("handoff", {"to_agent": "second", "reason": "Ada is a spy"}, "c-handoff")
    first = FunctionAgent(name="first", description="first", llm=TalkLLM([{ASKED: [[handing]]}]))
    second = FunctionAgent(
        name="second", description="second", llm=TalkLLM([{ASKED: [[], [TRUSTED], "done"]}]), tools=tools()
    )
    await AgentWorkflow(agents=[first, second], root_agent="first").run(ASKED, memory=memory)
    assert read_by(model) == [ASKED, SECRET]
    assert model.tasks.count("extract") == 1


async def test_a_tool_that_answers_the_user_directly_ends_the_turn(named: str) -> None:
    session, model = learning()
    direct = FunctionTool.from_defaults(lambda number: SECRET, name="lookup_order", description="x", return_direct=True)
    memory = memory_of(session, named, trusted_tools={"lookup_order"})
    await function_agent({ASKED: [[TRUSTED]]}, [direct]).run(ASKED, memory=memory)
    assert read_by(model) == [ASKED, SECRET]


# --- when it is read ----------------------------------------------------------------------------------------------


async def test_each_turn_is_read_once_when_it_has_ended(named: str, make_agent: Any) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    agent = make_agent()
    ctx = Context(agent)
    for question in ("I like tea.", "I live in Paris.", "I like tea."):
        await agent.run(question, memory=memory, ctx=ctx)
    assert read_by(model) == ["I like tea.", "I live in Paris.", "I like tea."]
    assert await known(session) == ["I like tea.", "I live in Paris."]


async def test_a_turn_that_fails_is_read_when_the_next_begins_once(named: str, make_agent: Any) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    agent = make_agent({"I like tea.": [ValueError("the model is down")]})
    ctx = Context(agent)
    with pytest.raises(ValueError, match="the model is down"):
        await agent.run("I like tea.", memory=memory, ctx=ctx)
    assert read_by(model) == []
    await agent.run("I live in Paris.", memory=memory, ctx=ctx)
    await agent.run("Bye.", memory=memory, ctx=ctx)
    assert read_by(model) == ["I like tea.", "I live in Paris.", "Bye."]


async def test_a_turn_that_runs_out_of_iterations_is_read_when_the_next_begins_once(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, trusted_tools={"lookup_order"})
    agent = function_agent({ASKED: [[TRUSTED], [UNTRUSTED], [UNTRUSTED]]}, tools())
    ctx = Context(agent)
    with pytest.raises(Exception, match="Max iterations"):
        await agent.run(ASKED, memory=memory, ctx=ctx, max_iterations=2)
    assert read_by(model) == []
    await agent.run("Bye.", ctx=ctx, max_iterations=9)
    # The framework stores the calls of the first turn with the second: they are still known by their ids.
    assert sorted(read_by(model)) == sorted([ASKED, "Bye.", SECRET])


async def test_an_answer_that_was_forced_with_a_call_in_it_is_not_the_end_of_a_turn(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    agent = function_agent({ASKED: [[UNTRUSTED]] * 9}, tools(), early_stopping_method="generate")
    ctx = Context(agent)
    await agent.run(ASKED, memory=memory, ctx=ctx, max_iterations=2)
    assert read_by(model) == []
    await agent.run("Bye.", ctx=ctx)
    assert read_by(model) == [ASKED, "Bye."]


async def test_a_cancelled_turn_is_read_when_the_next_begins_once(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    started, never = asyncio.Event(), asyncio.Event()

    async def slow(number: int) -> str:
        """Slow."""
        started.set()
        await never.wait()
        return "late"

    agent = function_agent({ASKED: [[Call("slow", {"number": 1}, "c1")]]}, [slow])
    ctx = Context(agent)
    handler = agent.run(ASKED, memory=memory, ctx=ctx)
    await started.wait()
    await handler.cancel_run()
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    await function_agent().run("Bye.", memory=memory)
    assert read_by(model) == [ASKED, "Bye."]


async def test_a_turn_can_be_read_by_hand(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, extract="manual")
    await function_agent().run("I like tea.", memory=memory)
    assert read_by(model) == []
    written = await memory.aflush()
    assert written is not None
    assert [record.text for record in written.records] == ["I like tea."]
    assert await memory.aflush() is None
    assert await asyncio.to_thread(memory.flush) is None
    off = memory_of(session, named, extract="off")
    await function_agent().run("I live in Paris.", memory=off)
    assert await known(session) == ["I like tea."]
    with pytest.raises(UnsupportedError, match="off"):
        await off.aflush()


async def test_two_that_read_one_turn_at_the_same_moment_read_it_once(named: str) -> None:
    gate = Gate()
    model = FakeLLM(facts=obey, before=gate)
    session = MemorySession(InMemoryStore(), ADA, llm=model)
    memory = memory_of(session, named, extract="manual")
    await memory.aput(ChatMessage(role="user", content="I like tea."))
    first = asyncio.create_task(memory.aflush())
    await gate.arrived.wait()
    assert await memory.aflush() is None
    gate.opened.set()
    assert await first is not None
    assert model.tasks == ["extract"]


async def test_a_reading_that_was_cancelled_is_done_again(named: str) -> None:
    gate = Gate()
    model = FakeLLM(facts=obey, before=gate)
    session = MemorySession(InMemoryStore(), ADA, llm=model)
    memory = memory_of(session, named)
    await memory.aput(ChatMessage(role="user", content="I like tea."))
    answering = asyncio.create_task(memory.aput(ChatMessage(role="assistant", content="Noted.")))
    await gate.arrived.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    await memory.aput(ChatMessage(role="user", content="Bye."))
    assert await known(session) == ["I like tea."]


async def test_twenty_parallel_first_calls_are_all_read_once(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    said = [f"I like tea number {number}." for number in range(20)]
    await asyncio.gather(*(function_agent().run(one, memory=memory) for one in said))
    assert sorted(read_by(model)) == sorted(said)
    assert sorted(await known(session)) == sorted(said)
    assert sorted(roles(await memory.aget_all())) == ["assistant"] * 20 + ["user"] * 20


async def test_a_failed_extraction_does_not_fail_the_run_unless_asked(
    named: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = FakeLLM(facts=[RuntimeError(SECRET), RuntimeError(SECRET), facts("Ada likes tea.")])
    session = MemorySession(InMemoryStore(), ADA, llm=model)
    memory = memory_of(session, named, on_error="log")
    await function_agent().run("I like tea.", memory=memory)
    assert "extract failed with RuntimeError" in caplog.text
    assert SECRET not in caplog.text
    with pytest.raises(RuntimeError):
        await function_agent().run("Hello.", memory=memory_of(session, named, session_id="s2"))
    await memory.aflush()
    assert await known(session) == ["Ada likes tea."]


async def test_a_session_without_a_model_is_told_of_once(named: str, caplog: pytest.LogCaptureFixture) -> None:
    session = MemorySession(InMemoryStore(), ADA)
    memory = memory_of(session, named, on_error="log")
    for question in ("I like tea.", "I live in Paris."):
        await function_agent().run(question, memory=memory)
    assert caplog.text.count("has no llm") == 1


async def test_a_reply_that_cannot_be_read_is_asked_for_once_more_and_no_more(named: str) -> None:
    model = FakeLLM(facts="no json")
    memory = memory_of(MemorySession(InMemoryStore(), ADA, llm=model), named)
    agent = function_agent()
    for question in ("I like tea.", "Bye.", "Bye bye.", "Good night."):
        await agent.run(question, memory=memory)
    asked = [prompt.user for prompt in model.prompts]
    # The core asks twice an operation. Two operations read a turn, at most two turns together.
    assert sum("I like tea." in one for one in asked) == 4


async def test_chat_engines_read_each_turn_once_also_from_sync_code(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    engine = SimpleChatEngine.from_defaults(llm=TalkLLM([{}]), memory=memory)
    await asyncio.to_thread(engine.chat, "I like tea.")
    await engine.achat("I live in Paris.")
    streamed = await asyncio.to_thread(engine.stream_chat, "I like coffee.")
    assert await asyncio.to_thread(lambda: "".join(streamed.response_gen)) == "done"
    assert read_by(model) == ["I like tea.", "I live in Paris.", "I like coffee."]


class State(BaseModel):
    """The state of a workflow of a host's own: it takes no other fields."""

    asked: int = 0


class Desk(Workflow):
    """A workflow of a host's own."""

    memory: Any = None

    @step
    async def answer(self, ctx: Context[State], ev: StartEvent) -> StopEvent:
        await self.memory.aput(ChatMessage(role="user", content=ASKED))
        prompt = await self.memory.aget()
        await self.memory.aput_messages([TRUSTED_RESULT, ChatMessage(role="assistant", content="It is on its way.")])
        with pytest.raises(ValueError, match="field"):
            await ctx.store.set("anything", 1)
        return StopEvent(result=str(prompt[0].content))


async def test_a_workflow_of_ones_own_with_a_state_of_its_own_type_can_use_it(named: str) -> None:
    session, model = learning()
    await session.remember("The parcel went to Paris.", supersede="add")
    desk = Desk()
    desk.memory = memory_of(session, named, trusted_tools={"lookup_order"})
    assert "went to Paris" in await desk.run()
    assert read_by(model) == [ASKED]


# --- recall -------------------------------------------------------------------------------------------------------


async def knowing(*texts: str, **more: Any) -> tuple[MemorySession, FakeLLM]:
    session, model = learning(**more)
    for place, text in enumerate(texts):
        await session.remember(text, id=f"r{place}", supersede="add")
    return session, model


class CountingEmbedder:
    """Counts how often a query is embedded."""

    def __init__(self) -> None:
        self.queries = 0

    async def embed(self, texts: list[str], *, purpose: str) -> Any:
        from vmem_core import Embeddings

        self.queries += purpose == "query"
        return Embeddings([[1.0, 0.5]] * len(texts), "counting")


async def test_a_turn_recalls_once_however_often_the_memory_is_read(named: str, make_agent: Any) -> None:
    # A ReActAgent drops the first system message: there the records are in the user's last.
    embedder = CountingEmbedder()
    session, _ = await knowing("The parcel went to Paris.", embedder=embedder)
    memory = memory_of(session, named, extract="off")
    agent = make_agent({ASKED: [[TRUSTED], [UNTRUSTED]]}, tools())
    await agent.run(ASKED, memory=memory)
    assert embedder.queries == 1
    assert len(shown(agent)) == 3
    for call in shown(agent):
        assert sum(str(one.content).count("The parcel went to Paris.") for one in call) == 1
    await agent.run(ASKED, memory=memory)
    assert embedder.queries == 2


async def test_readers_at_the_same_moment_share_one_recall_and_one_failure_is_not_theirs(named: str) -> None:
    embedder = CountingEmbedder()
    session, _ = await knowing("The parcel went to Paris.", embedder=embedder)
    memory = memory_of(session, named, extract="off")
    await memory.aput(ChatMessage(role="user", content=ASKED))
    read = await asyncio.gather(*(memory.aget() for _ in range(20)))
    assert embedder.queries == 1
    assert all(HEADING in str(messages[0].content) for messages in read)


async def test_recalled_text_is_never_stored_nor_read_also_if_it_is_given_back(named: str) -> None:
    session, model = await knowing("The parcel went to Paris.")
    memory = memory_of(session, named)
    agent = function_agent()
    await agent.run(ASKED, memory=memory)
    given_back = await memory.aget()
    assert HEADING in as_json([one.content for one in given_back])
    await agent.run("And now?", memory=memory, chat_history=given_back)
    by_user = memory_of(session, named, session_id="by-user", insert_method="user")
    await by_user.aset([ChatMessage(role="user", content=ASKED)])
    await by_user.aset(await by_user.aget())
    await by_user.aput(ChatMessage(role="assistant", content="done"))
    for one in (memory, by_user):
        assert HEADING not in as_json([message.model_dump(mode="json") for message in await one.aget_all()])
    assert set(read_by(model)) <= {ASKED, "And now?"}


async def test_a_record_that_is_forgotten_meanwhile_is_not_shown_again(named: str) -> None:
    session, _ = await knowing("The parcel went to Paris.")
    memory = memory_of(session, named, extract="off")
    await memory.aput(ChatMessage(role="user", content=ASKED))
    assert "went to Paris" in str((await memory.aget())[0].content)
    await session.forget("r0")
    assert "went to Paris" not in as_json([one.content for one in await memory.aget()])
    assert "[forgotten]" in str((await memory.aget())[0].content)


async def test_whole_records_are_left_out_when_the_tokens_are_short(named: str) -> None:
    texts = [f"Parcel {number} went to Paris by train." for number in range(6)]
    session, _ = await knowing(*texts)
    sizes = []
    for limit in (30, 60, 90, 120, 400):
        memory = memory_of(
            session, named, session_id=f"s{limit}", extract="off", token_limit=limit, tokenizer_fn=str.split
        )
        await memory.aput(ChatMessage(role="user", content="Which parcel went to Paris?"))
        messages = await memory.aget()
        text = str(messages[0].content) if len(messages) > 1 else ""
        lines = [line for line in text.split("\n") if line.startswith("[id=")]
        sizes.append(len(lines))
        for line in lines:  # each with its labels, none cut
            assert line.startswith("[id=r")
            assert line.endswith("by train.>>")
        assert sum(len(str(one.content).split()) for one in messages) <= limit
    assert sizes == sorted(sizes)
    assert sizes[-1] == 6
    assert 0 < sizes[1] < 6


async def test_what_else_a_prompt_will_hold_counts(named: str) -> None:
    session, _ = await knowing("The parcel went to Paris.")
    memory = memory_of(session, named, extract="off", token_limit=200, tokenizer_fn=str.split)
    await memory.aput(ChatMessage(role="user", content=ASKED))
    assert len(await memory.aget(initial_token_count=10)) == 2
    assert len(await memory.aget(initial_token_count=199)) == 1


async def test_the_model_sees_no_key_of_ours(named: str, make_agent: Any) -> None:
    session, _ = await knowing("The parcel went to Paris.")
    agent = make_agent({ASKED: [[TRUSTED]]}, tools())
    memory = memory_of(session, named)
    for question in (ASKED, "And now?"):
        await agent.run(question, memory=memory)
    assert "vmem" not in as_json([[one.model_dump(mode="json") for one in call] for call in shown(agent)])
    assert "vmem" not in as_json([one.model_dump(mode="json") for one in await memory.aget_all()])


async def test_a_question_can_be_a_message_or_be_asked_before_it_is_stored(named: str) -> None:
    session, _ = await knowing("The parcel went to Paris.")
    memory = memory_of(session, named, extract="off")
    for asked in (ASKED, ChatMessage(role="user", blocks=[TextBlock(text="Where is"), TextBlock(text="my parcel?")])):
        assert "went to Paris" in str((await memory.aget(input=asked))[0].content)
    assert await memory.aget() == []
    assert await memory.aget(input="  ") == []


async def test_a_failed_recall_does_not_fail_the_run_unless_asked(named: str, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(CountingEmbedder):
        async def embed(self, texts: list[str], *, purpose: str) -> Any:
            if purpose == "query":
                raise RuntimeError(SECRET)
            return await super().embed(texts, purpose=purpose)

    session, _ = await knowing("The parcel went to Paris.", embedder=Broken())
    agent = function_agent()
    await agent.run(ASKED, memory=memory_of(session, named, on_error="log", extract="off"))
    assert "recall failed with RuntimeError" in caplog.text
    assert SECRET not in caplog.text
    with pytest.raises(RuntimeError):
        await agent.run(ASKED, memory=memory_of(session, named, extract="off"))


# --- a given history ----------------------------------------------------------------------------------------------


def said(*texts: str) -> list[ChatMessage]:
    """A history: the user and the assistant in turn."""
    return [
        ChatMessage(role="user" if place % 2 == 0 else "assistant", content=text) for place, text in enumerate(texts)
    ]


async def test_a_history_that_is_set_on_every_run_is_not_read_again(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    agent = function_agent()
    history: list[ChatMessage] = said("I like coffee.", "Noted.")
    for question in ("I like tea.", "I live in Paris."):
        await agent.run(question, chat_history=history, memory=memory)
        history = [*history, *said(question, "done")]
    assert roles(await memory.aget_all()) == ["user", "assistant"] * 3
    assert read_by(model) == ["I like tea.", "I live in Paris."]


async def test_equal_messages_of_a_history_are_told_apart(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    history = said("Yes.", "Good.", "Yes.", "Good.", "Yes.")
    for _ in range(2):
        await memory.aset(history)
    await memory.aput(ChatMessage(role="assistant", content="Good."))
    await memory.aset([*history, ChatMessage(role="assistant", content="Good.")])
    assert roles(await memory.aget_all()) == ["user", "assistant"] * 3
    assert read_by(model) == ["Yes."]


async def test_a_question_at_the_end_of_a_history_is_read(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    await function_agent().run(chat_history=said("I like coffee.", "Noted.", "I like tea."), memory=memory)
    assert read_by(model) == ["I like tea."]


async def test_a_turn_that_was_left_is_read_though_the_next_history_lacks_it(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    agent = function_agent({"I like tea.": [ValueError("down")]})
    with pytest.raises(ValueError, match="down"):
        await agent.run("I like tea.", memory=memory)
    await agent.run("Bye.", chat_history=said("Hello.", "Hello."), memory=memory)
    assert read_by(model) == ["I like tea.", "Bye."]


async def test_what_is_archived_before_it_was_read_is_read_all_the_same(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named, extract="manual", token_limit=30, token_flush_size=5, tokenizer_fn=str.split)
    texts = [f"I like tea number {number} and nothing else." for number in range(6)]
    for text in texts:
        await memory.aput_messages([ChatMessage(role="user", content=text)])
        await memory.aput_messages([ChatMessage(role="assistant", content="Noted.")])
    assert len(await memory.aget()) < len(await memory.aget_all())
    await memory.aflush()
    assert read_by(model) == texts


async def test_a_reset_deletes_the_chat_and_nothing_that_was_learned(named: str) -> None:
    session, _ = learning()
    memory = memory_of(session, named)
    await function_agent().run("I like tea.", memory=memory)
    await memory.areset()
    assert await memory.aget_all() == []
    assert await known(session) == ["I like tea."]


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"session": "ada"}, "session"),
        ({"binding": " "}, "binding"),
        ({"binding": 3}, "binding"),
        ({"trusted_tools": "lookup_order"}, "trusted_tools"),
        ({"trusted_tools": [3]}, "trusted_tools"),
        ({"extract": "sometimes"}, "extract"),
        ({"on_error": "ignore"}, "on_error"),
        ({"session_id": ""}, "session_id"),
        ({"chat_store": object()}, "chat_store"),
        ({"top_k": 0}, "top_k"),
        ({"max_tokens": True}, "max_tokens"),
        ({"token_limit": 0}, "token_limit"),
        ({"token_flush_size": -1}, "token_flush_size"),
        ({"chat_history_token_ratio": 2}, "chat_history_token_ratio"),
        ({"insert_method": "assistant"}, "insert_method"),
        ({"tokenizer_fn": 3}, "tokenizer_fn"),
    ],
)
def test_wrong_arguments_are_refused_by_name(named: str, wrong: dict[str, Any], path: str) -> None:
    given = {"session": learning()[0], "binding": named, **wrong}
    with pytest.raises(InvalidRequestError) as caught:
        VersionedMemory.from_session(**given)
    assert caught.value.path == path


def test_it_is_not_made_without_a_session() -> None:
    with pytest.raises(UnsupportedError, match="from_session"):
        VersionedMemory.from_defaults()
