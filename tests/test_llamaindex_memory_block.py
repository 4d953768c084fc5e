"""The block for a ``Memory`` of one's own: it recalls once a turn and never learns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from llamaindex_fakes import Call
from llamaindex_memory_fakes import (
    AGENTS,
    SECRET,
    TRUSTED,
    UNTRUSTED,
    TalkLLM,
    as_json,
    function_agent,
    learning,
    roles,
    shown,
    tools,
    workflow_agent,
)
from sqlalchemy.ext.asyncio import create_async_engine

from vmem_core import Embeddings, InvalidRequestError
from vmem_llamaindex import MemoryRequest, VersionedMemoryBlock

ASKED = "Where is my parcel?"


class CountingEmbedder:
    """Counts how often a query is embedded, and fails if it is told to."""

    def __init__(self) -> None:
        self.queries, self.fails = 0, False

    async def embed(self, texts: list[str], *, purpose: str) -> Embeddings:
        self.queries += purpose == "query"
        if self.fails:
            raise RuntimeError(SECRET)
        return Embeddings([[1.0, 0.5]] * len(texts), "counting")


@pytest.fixture
async def engine() -> AsyncIterator[Any]:
    made = create_async_engine("sqlite+aiosqlite:///:memory:")
    yield made
    await made.dispose()


def memory_with(block: Any, engine: Any, **more: Any) -> Memory:
    return Memory.from_defaults(memory_blocks=[block], async_engine=engine, **more)


@pytest.mark.parametrize("make_agent", [function_agent, workflow_agent])
async def test_a_turn_recalls_once_and_shows_it_to_every_call(make_agent: Any, engine: Any) -> None:
    embedder = CountingEmbedder()
    session, model = learning(embedder=embedder)
    await session.remember("The parcel went to Paris.", supersede="add")
    agent = make_agent({ASKED: [[TRUSTED], [UNTRUSTED]]}, tools())
    memory = memory_with(VersionedMemoryBlock(session=session, on_error="raise"), engine)
    await agent.run(ASKED, memory=memory)
    assert embedder.queries == 1
    assert all("<<The parcel went to Paris.>>" in as_json([one.content for one in call]) for call in shown(agent))
    await agent.run(ASKED, memory=memory)
    assert embedder.queries == 2
    assert "Paris" not in as_json([one.content for one in await memory.aget_all()])
    assert model.prompts == []


async def test_a_handoff_does_not_recall_anew(engine: Any) -> None:
    embedder = CountingEmbedder()
    session, _ = learning(embedder=embedder)
    await session.remember("The parcel went to Paris.", supersede="add")
    handing = Call("handoff", {"to_agent": "second", "reason": "it knows"}, "c1")
    first = FunctionAgent(name="first", description="first", llm=TalkLLM([{ASKED: [[handing]]}]))
    second = FunctionAgent(name="second", description="second", llm=TalkLLM([{}]))
    agent = AgentWorkflow(agents=[first, second], root_agent="first")
    await agent.run(ASKED, memory=memory_with(VersionedMemoryBlock(session=session, on_error="raise"), engine))
    assert embedder.queries == 1


async def test_what_the_memory_archives_is_not_read(engine: Any) -> None:
    session, model = learning()
    block = VersionedMemoryBlock(session=session)
    memory = memory_with(block, engine, token_limit=30, token_flush_size=5, tokenizer_fn=str.split)
    for _ in range(6):
        await memory.aput(ChatMessage(role="user", content="I like tea and nothing else in the world."))
    assert len(await memory.aget_all()) > len(await memory.sql_store.get_messages(memory.session_id))
    await block.aput([ChatMessage(role="user", content="I like tea.")])
    assert model.prompts == []
    assert await session.count() == 0


async def test_whole_records_are_left_out_when_the_tokens_are_short(engine: Any) -> None:
    session, _ = learning()
    for number in range(6):
        await session.remember(f"Parcel {number} went to Paris by train.", id=f"r{number}", supersede="add")
    sizes = []
    for limit in (20, 60, 90, 400):
        block = VersionedMemoryBlock(session=session, count_tokens=lambda text: len(text.split()))
        memory = memory_with(block, engine, session_id=f"s{limit}", token_limit=limit, tokenizer_fn=str.split)
        await memory.aput(ChatMessage(role="user", content="Which parcel went to Paris?"))
        text = as_json([one.content for one in await memory.aget()])
        sizes.append(text.count("[id=r"))
        assert text.count("by train.>>") == sizes[-1]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (0, 6)
    assert 0 < sizes[1] < 6


async def test_a_session_is_found_for_each_run(engine: Any) -> None:
    session, _ = learning()
    await session.remember("The parcel went to Paris.", supersede="add")
    asked: list[MemoryRequest] = []
    found = [session, None]

    async def resolver(request: MemoryRequest) -> Any:
        asked.append(request)
        return found[0]

    memory = memory_with(VersionedMemoryBlock(session=resolver, on_error="raise"), engine)
    await memory.aput(ChatMessage(role="user", content=ASKED))
    assert "Paris" in as_json([one.content for one in await memory.aget()])
    found.reverse()
    assert roles(await memory.aget()) == ["user"]
    await function_agent().run(ASKED, memory=memory)
    assert [one.context is not None for one in asked] == [False, False, True, True]


async def test_a_failure_is_logged_without_its_words_unless_it_is_to_be_raised(
    engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    embedder = CountingEmbedder()
    session, _ = learning(embedder=embedder)
    await session.remember("The parcel went to Paris.", supersede="add")
    embedder.fails = True
    question = [ChatMessage(role="user", content=ASKED)]
    assert await VersionedMemoryBlock(session=session).aget(question) == ""
    assert "recall failed with RuntimeError" in caplog.text
    assert SECRET not in caplog.text
    with pytest.raises(RuntimeError):
        await VersionedMemoryBlock(session=session, on_error="raise").aget(question)


async def test_without_a_question_nothing_is_recalled() -> None:
    block = VersionedMemoryBlock(session=learning()[0], on_error="raise")
    assert await block.aget() == ""
    assert await block.aget([ChatMessage(role="assistant", content="Hello.")]) == ""
    assert await block.aget([ChatMessage(role="user", content=" ")]) == ""


async def test_it_holds_no_session_when_it_is_dumped() -> None:
    block = VersionedMemoryBlock(session=learning()[0])
    assert "session" not in block.model_dump()
    assert "MemorySession" not in repr(block)


async def test_a_react_agent_shows_it_where_it_has_a_system_prompt(engine: Any) -> None:
    """Without one the framework drops the first system message, which is then the memory's."""
    session, _ = learning()
    await session.remember("The parcel went to Paris.", supersede="add")
    agent = AGENTS["ReActAgent"](system_prompt="Be kind.")
    await agent.run(ASKED, memory=memory_with(VersionedMemoryBlock(session=session), engine))
    assert "Paris" in as_json([one.content for one in shown(agent)[0]])


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"session": "ada"}, "session"),
        ({"top_k": 0}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"count_tokens": 3}, "count_tokens"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        VersionedMemoryBlock(**{"session": learning()[0], **wrong})
    assert caught.value.path == path
