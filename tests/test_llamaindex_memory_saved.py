"""A chat memory that is saved with a context: what is in it, who gets it back, and what a resumed run does twice."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_models import FakeLLM, Gate, obey
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.workflow import Context, JsonPickleSerializer, JsonSerializer
from llamaindex_fakes import Call
from llamaindex_memory_fakes import (
    ADA,
    AGENTS,
    BOB,
    SECRET,
    TRUSTED,
    TalkLLM,
    as_json,
    begin_process,
    function_agent,
    known,
    learning,
    memory_of,
    read_by,
    roles,
    shown,
    tools,
)
from processes import Script, run_script
from sqlalchemy.ext.asyncio import create_async_engine
from workflows.errors import WorkflowCancelledByUser

from vmem_core import Embeddings, InMemoryStore, InvalidRequestError, MemorySession, Scope
from vmem_llamaindex import MemoryRequest, VersionedMemory, bind_session

ASKED = "Where is my parcel?"


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the adapter as new as in a process that has just started."""
    return lambda: begin_process(monkeypatch)


def saved(ctx: Context, **more: Any) -> dict[str, Any]:
    """A context, as it comes back from a database."""
    return dict(json.loads(json.dumps(ctx.to_dict(**more))))


def memory_in(data: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(data["state"]["state_data"]["_data"]["memory"])["value"])


# --- the round trip -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_agent", AGENTS.values(), ids=AGENTS)
async def test_it_lives_on_in_a_context_and_in_its_json(named: str, make_agent: Any) -> None:
    session, model = learning()
    await session.remember("The parcel went to Paris.", supersede="add")
    agent = make_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(session, named), ctx=ctx)
    await agent.run("I like coffee.", ctx=ctx)
    ctx = Context.from_dict(agent, saved(ctx))
    await agent.run(ASKED, ctx=ctx)
    kept = await ctx.store.get("memory")
    assert isinstance(kept, VersionedMemory)
    assert read_by(model) == ["I like tea.", "I like coffee.", ASKED]
    assert [one.content for one in await kept.aget_all() if one.role == "user"] == read_by(model)
    assert "went to Paris" in as_json([one.content for one in shown(agent)[-1]])


async def test_upstreams_memory_does_not() -> None:
    engine = create_async_engine("sqlite+aiosqlite:///:memory:")
    agent = function_agent()
    ctx = Context(agent)
    with warnings.catch_warnings(action="ignore"):  # the framework tells of it, among much else
        await agent.run("I like tea.", memory=Memory.from_defaults(async_engine=engine), ctx=ctx)
        ctx = Context.from_dict(agent, saved(ctx))
    assert await ctx.store.get("memory", default=None) is None
    await engine.dispose()


async def test_between_runs_nothing_that_was_said_or_is_known_is_in_it(named: str) -> None:
    session, _ = learning(Scope(user_id="somebody"))  # no digest and no id can hold that by chance
    await session.remember("The parcel went to Paris.", supersede="add")
    agent = function_agent({ASKED: [[TRUSTED], "It is on its way."]}, tools())
    ctx = Context(agent)
    memory = memory_of(session, named, trusted_tools={"lookup_order"})
    await agent.run(ASKED, memory=memory, ctx=ctx)
    data = saved(ctx)
    del data["workers"]  # a step that ends as the run does may still be there with its events: the framework's
    for text in ("Paris", SECRET, "on its way"):
        assert text not in as_json(data)
    assert data["state"]["state_data"]["_data"].pop("user_msg_str") == as_json(ASKED), "which the framework keeps"
    assert ASKED not in as_json(data)
    assert "somebody" not in as_json(memory_in(data))  # nor whose it is


async def test_of_an_unfinished_turn_its_messages_are_if_no_other_place_keeps_them(named: str) -> None:
    session, _ = learning()
    memory = memory_of(session, named)
    for text in ("I like tea.", "I like coffee."):
        await memory.aput(ChatMessage(role="user", content=text))
        if text == "I like tea.":
            await memory.aput(ChatMessage(role="assistant", content="Noted."))
    data = memory.to_dict()
    assert "I like tea." not in as_json(data)
    assert [one["blocks"][0]["text"] for one in data["unfinished"]] == ["I like coffee."]


@pytest.mark.parametrize("serializer", [JsonSerializer(allowed_types=[VersionedMemory]), JsonPickleSerializer()])
async def test_it_lives_on_with_every_serializer(named: str, serializer: Any) -> None:
    session, model = learning()
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(session, named), ctx=ctx)
    ctx = Context.from_dict(agent, saved(ctx, serializer=serializer), serializer=serializer)
    await agent.run("I like coffee.", ctx=ctx)
    assert isinstance(await ctx.store.get("memory"), VersionedMemory)
    assert read_by(model) == ["I like tea.", "I like coffee."]


async def test_copies_are_the_same_conversation(named: str) -> None:
    session, model = learning()
    memory = memory_of(session, named)
    copies = [copy.deepcopy(memory), pickle.loads(pickle.dumps(memory)), VersionedMemory.from_dict(memory.to_dict())]
    await copies[0].aput(ChatMessage(role="user", content="I like tea."))
    for one in (memory, *copies):
        assert roles(await one.aget_all()) == ["user"]
    await asyncio.gather(*(one.aflush() for one in copies))
    assert read_by(model) == ["I like tea."]


# --- another process ----------------------------------------------------------------------------------------------


async def test_another_process_goes_on_with_what_was_read_and_recalled(
    named: str, another_process: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    session, model = learning()
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(session, named), ctx=ctx)
    data = saved(ctx)
    another_process()
    bind_session(named, session)
    ctx = Context.from_dict(agent, data)
    await agent.run("Which tea?", ctx=ctx)
    assert read_by(model) == ["I like tea.", "Which tea?"]
    assert "I like tea." in as_json([one.content for one in shown(agent)[-1]])  # from memory
    assert "kept in another process" in caplog.text  # the chat itself is gone, and that is said


async def test_a_run_is_resumed_in_the_middle_by_another_process(
    named: str, another_process: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    session, model = learning()
    started, never = asyncio.Event(), asyncio.Event()

    async def slow(number: int) -> str:
        """Slow the first time."""
        if not started.is_set():
            started.set()
            await never.wait()
        return SECRET

    call = Call("slow", {"number": 1}, "c1")
    agent = function_agent({ASKED: [[call]]}, [slow])
    memory = memory_of(session, named, trusted_tools={"slow"})
    handler = agent.run(ASKED, memory=memory)
    await started.wait()
    data = await saved_in(handler, "call_tool")
    await stop(handler)
    another_process()
    bind_session(named, session)
    ctx = Context.from_dict(agent, data)
    await agent.run(ctx=ctx)
    kept = await ctx.store.get("memory")
    assert roles(await kept.aget_all()) == ["user", "assistant", "tool", "assistant"]
    assert ASKED in as_json([one.content for one in shown(agent)[-1]])
    assert read_by(model) == [ASKED, SECRET]
    assert caplog.text == ""  # nothing is missing


async def saved_in(handler: Any, step: str) -> dict[str, Any]:
    """The context of a run, when a step is the only one under way."""
    while True:
        data = saved(handler.ctx)
        if [name for name, one in data["workers"].items() if one["in_progress"]] == [step]:
            return data
        await asyncio.sleep(0)


async def stop(handler: Any) -> None:
    await handler.cancel_run()
    with pytest.raises(WorkflowCancelledByUser):
        await handler


@pytest.mark.parametrize("history", [[], ["Hello.", "Hello."]])
async def test_a_step_that_began_the_run_and_is_done_again_says_nothing_twice(named: str, history: list[str]) -> None:
    gate = Gate()

    class Slow:
        async def embed(self, texts: list[str], *, purpose: str) -> Embeddings:
            if purpose == "query":
                await gate(None)  # type: ignore[arg-type]
            return Embeddings([[1.0]] * len(texts), "slow")

    session, model = learning(embedder=Slow())
    await session.remember("The parcel went to Paris.", supersede="add")
    agent = function_agent()
    given = [ChatMessage(role=role, content=text) for role, text in zip(("user", "assistant"), history, strict=False)]
    handler = agent.run("I like tea.", chat_history=given, memory=memory_of(session, named))
    await gate.arrived.wait()  # the user's message is stored, and the step that stored it is not over
    data = saved(handler.ctx)
    await stop(handler)
    ctx = Context.from_dict(agent, data)
    await agent.run(ctx=ctx)
    messages = await (await ctx.store.get("memory")).aget_all()
    assert [one.content for one in messages] == [*history, "I like tea.", "done"]
    assert read_by(model) == ["I like tea."]


async def test_a_step_that_ended_the_run_and_is_done_again_says_nothing_twice(named: str) -> None:
    gate = Gate()
    model = FakeLLM(facts=obey, decisions=obey, before=gate)
    session = MemorySession(InMemoryStore(), ADA, llm=model)
    agent = function_agent({ASKED: [[TRUSTED]]}, tools())
    handler = agent.run(ASKED, memory=memory_of(session, named, trusted_tools={"lookup_order"}))
    await gate.arrived.wait()  # the answer is stored, and being read
    data = saved(handler.ctx)
    await stop(handler)
    ctx = Context.from_dict(agent, data)
    await agent.run(ctx=ctx)
    assert roles(await (await ctx.store.get("memory")).aget_all()) == ["user", "assistant", "tool", "assistant"]
    assert await known(session) == [ASKED, SECRET]
    assert len(set(read_by(model))) * 2 == len(read_by(model))  # asked once more, for the first was cancelled


async def test_the_user_may_say_the_same_twice(named: str) -> None:
    session, _ = learning()
    agent = function_agent()
    memory = memory_of(session, named)
    ctx = Context(agent)
    for _ in range(2):
        await agent.run("Yes.", memory=memory, ctx=ctx)
    assert roles(await memory.aget_all()) == ["user", "assistant"] * 2


SCRIPT = """
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # how the framework uses pydantic
sys.path.insert(0, ARGS[1])
from fake_models import FakeLLM, obey
from llama_index.core.workflow import Context
from llamaindex_fakes import Call
from llamaindex_memory_fakes import ADA, function_agent, known, roles
from vmem_llamaindex import VersionedMemory, bind_session


async def slow(number: int) -> str:
    "Kills the process the first time."
    while ARGS[2] == "crash":
        data = handler.ctx.to_dict()
        if [name for name, one in data["workers"].items() if one["in_progress"]] == ["call_tool"]:
            with open(ARGS[0], "w") as file:
                json.dump(data, file)
            os._exit(9)
        await asyncio.sleep(0)
    return "blue"


async def main():
    global handler
    session = MemorySession(SqliteStore(PATH), ADA, llm=FakeLLM(facts=obey, decisions=obey))
    agent = function_agent({"Where?": [[Call("slow", {"number": 1}, "c1")]]}, [slow])
    if ARGS[2] == "crash":
        memory = VersionedMemory.from_session(session, binding="b", trusted_tools=["slow"])
        handler = agent.run("Where?", memory=memory)
        await handler
    with open(ARGS[0]) as file:
        data = json.load(file)
    try:
        await agent.run(ctx=Context.from_dict(agent, data))
    except ValueError as error:
        say(str(error))
    bind_session("b", session)
    ctx = Context.from_dict(agent, data)
    await agent.run(ctx=ctx)
    say([roles(await (await ctx.store.get("memory")).aget_all()), await known(session)])
    await session.store.close()


asyncio.run(main())
"""


def test_a_process_that_is_killed_in_a_tool_is_followed_by_one_that_needs_the_binding(path: Path) -> None:
    place = (path, path.parent / "ctx.json", Path(__file__).parent)
    with Script(SCRIPT, *place, "crash") as crashing:
        assert crashing.end(9) == []
    refused, done = map(json.loads, run_script(SCRIPT, *place, "resume"))
    assert "call bind_session('b', session)" in refused
    assert done == [["user", "assistant", "tool", "assistant"], ["Where?", "blue"]]


# --- bindings -----------------------------------------------------------------------------------------------------


async def test_without_a_binding_a_context_is_refused_before_anything_runs(
    named: str, another_process: Callable[[], None]
) -> None:
    session, model = learning()
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(session, named), ctx=ctx)
    data = saved(ctx)
    another_process()
    calls = len(shown(agent))
    with pytest.raises(ValueError, match="is bound to no session in this process; call bind_session"):
        await agent.run("Bye.", ctx=Context.from_dict(agent, data))
    with pytest.raises(InvalidRequestError) as caught:
        VersionedMemory.from_dict(memory_in(data))
    assert caught.value.path == "binding"
    assert len(shown(agent)) == calls
    assert read_by(model) == ["I like tea."]


def test_what_is_no_saved_memory_is_refused(named: str) -> None:
    data = memory_of(learning()[0], named).to_dict()
    for name in ("binding", "scope_digest", "token_limit", "insert_method"):
        with pytest.raises(InvalidRequestError, match=f"{name} is missing"):
            VersionedMemory.from_dict({key: value for key, value in data.items() if key != name})


async def test_a_binding_that_stands_for_somebody_else_is_refused(
    named: str, another_process: Callable[[], None]
) -> None:
    session, _ = learning()
    bob, heard = learning(BOB)
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("I like tea.", memory=memory_of(session, named), ctx=ctx)
    data = saved(ctx)
    with pytest.raises(InvalidRequestError, match="another scope"):
        memory_of(bob, named)
    another_process()
    bind_session(named, bob)
    with pytest.raises(ValueError, match="stands for another scope"):
        await agent.run("Bye.", ctx=Context.from_dict(agent, data))
    assert read_by(heard) == []


async def test_a_resolver_serves_many_and_none_gets_anothers(named: str) -> None:
    ada, bob = learning(ADA), learning(BOB)
    who: list[MemorySession | None] = [ada[0]]
    asked: list[MemoryRequest] = []

    def resolver(request: MemoryRequest) -> MemorySession | None:
        asked.append(request)
        return who[0]

    bind_session(named, resolver)
    agent = function_agent()
    ctx, of_bob = Context(agent), Context(agent)
    await agent.run("I like tea.", memory=memory_of(ada[0], named, session_id="s"), ctx=ctx)
    await agent.run("I like coffee.", memory=memory_of(bob[0], named, session_id="s"), ctx=of_bob)
    await agent.run("I live in Paris.", ctx=ctx)
    assert asked
    assert all(one.binding == named and one.context is not None for one in asked)
    assert (read_by(ada[1]), read_by(bob[1])) == (["I like tea.", "I live in Paris."], ["I like coffee."])
    for wrong, words in ((bob[0], "stands for another scope"), (None, "found no session")):
        who[0] = wrong
        with pytest.raises(InvalidRequestError, match=words):
            await agent.run("I live in Rome.", ctx=ctx)
    assert "Rome" not in as_json([read_by(ada[1]), read_by(bob[1])])


@pytest.mark.parametrize("make_agent", AGENTS.values(), ids=AGENTS)
@pytest.mark.parametrize("through_json", [False, True])
async def test_a_context_with_the_memory_of_one_user_never_serves_another(
    named: str, make_agent: Any, through_json: bool
) -> None:
    ada, heard_ada = learning(ADA)
    bob, heard_bob = learning(BOB)
    await ada.remember("Ada likes tea.", supersede="add")
    agent = make_agent()
    ctx = Context(agent)
    await agent.run("Hello.", memory=memory_of(ada, named), ctx=ctx)
    if through_json:
        ctx = Context.from_dict(agent, saved(ctx))
    calls = len(shown(agent))
    with pytest.raises(InvalidRequestError, match="start with a new Context") as caught:
        await agent.run("Who likes tea?", memory=memory_of(bob, f"{named} of bob"), ctx=ctx)
    assert caught.value.path == "memory"
    assert len(shown(agent)) == calls
    assert (read_by(heard_ada), read_by(heard_bob)) == (["Hello."], [])
    await agent.run("Who likes tea?", memory=memory_of(ada, named), ctx=Context.from_dict(agent, saved(ctx)))


async def test_another_conversation_on_a_used_context_is_told_of_once(
    named: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, _ = learning()
    agent = function_agent()
    ctx = Context(agent)
    first, second = (memory_of(session, named, session_id=one) for one in ("s1", "s2"))
    await agent.run("Hello.", memory=first, ctx=ctx)
    assert caplog.records == []
    for _ in range(2):
        await agent.run("I live in Paris.", memory=second, ctx=ctx)
    assert [one.message for one in caplog.records if "goes on with the conversation that it holds" in one.message]
    assert len(caplog.records) == 1
    assert await second.aget_all() == []


async def test_a_memory_of_another_kind_is_not_silently_replaced_by_it(named: str) -> None:
    session, _ = learning()
    agent = function_agent()
    ctx = Context(agent)
    await agent.run("Hello.", memory=memory_of(session, named), ctx=ctx)
    with pytest.raises(InvalidRequestError, match="start with a new Context"):
        await agent.run("Hello.", memory=Memory.from_defaults(), ctx=ctx)


async def test_a_step_can_be_seen_to_begin_a_run() -> None:
    """What the refusal above stands on: the framework hands over the event that a step is called with."""
    from vmem_llamaindex.memory_run import memory_of_start

    seen = []

    class Spying(FunctionAgent):
        async def _init_context(self, ctx: Any, ev: Any) -> None:
            seen.append(memory_of_start() is ev.get("memory"))
            await super()._init_context(ctx, ev)

    session, _ = learning()
    await Spying(llm=TalkLLM([{}])).run("Hello.", memory=memory_of(session, "a spy"))
    assert seen == [True]
    assert memory_of_start() is None
