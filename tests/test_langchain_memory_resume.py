"""A process dies in a hook of the middleware; another one, ours, resumes the run: one extraction, the same context.

This file is also the program that dies: ``python THIS_FILE MODE FOLDER WAY``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import texts
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import tool
from langchain_fakes import DONE, asked, calling, in_thread, tool_call
from langchain_memory import Witness, obedient, read_texts, session_of
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from vmem_core import MemorySession, SqliteStore
from vmem_langchain import MemoryMiddleware

THREAD = in_thread("conversation-1")
KILLED = 9
QUESTION = "Where does Ada live?"


class DiesAfterExtraction(MemoryMiddleware):
    """Ends the process once the turn was read: committed, and no checkpoint knows."""

    name = "MemoryMiddleware"

    def after_agent(self, state: Any, runtime: Any) -> Any:
        super().after_agent(state, runtime)
        os._exit(KILLED)

    async def aafter_agent(self, state: Any, runtime: Any) -> Any:
        await super().aafter_agent(state, runtime)
        os._exit(KILLED)


class DiesInTheModel(AgentMiddleware[Any, Any]):
    """Ends the process inside the model call, and says what the model was about to see."""

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        print(json.dumps(request.system_message.text), flush=True)
        os._exit(KILLED)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        self.wrap_model_call(request, handler)


@tool
def broken(query: str) -> str:
    """A tool that takes the process down."""
    os._exit(KILLED)


# --- the program --------------------------------------------------------------------------------------------------


def parts(mode: str, session: MemorySession) -> tuple[list[Any], Any]:
    """Middleware and script of a mode."""
    if mode == "die_after_extraction":
        return [DiesAfterExtraction(session, tools=False)], [DONE]
    ours = MemoryMiddleware(session, tools=False)
    if mode == "die_in_the_model":
        return [ours, DiesInTheModel()], [DONE]
    if mode == "die_in_a_tool":
        return [ours], [calling(tool_call("broken", {"query": "x"})), DONE]
    return [ours], [DONE] * 9


async def run(folder: Path, mode: str, way: str) -> dict[str, Any]:
    store, llm = SqliteStore(folder / "memory.db"), obedient()
    middleware, script = parts(mode, session_of(store, llm=llm))
    model = Witness(script=script)
    given = None if mode == "resume" else asked("I like tea." if mode == "go_on" else QUESTION)
    path = str(folder / "checkpoints.db")

    def agent_of(saver: Any) -> Any:
        return create_agent(model, [broken], middleware=middleware, checkpointer=saver)

    if way == "sync":
        with SqliteSaver.from_conn_string(path) as saver:
            agent_of(saver).invoke(given, THREAD, durability="sync")
    else:
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            await agent_of(saver).ainvoke(given, THREAD, durability="sync")
    await store.close()
    return {"read": read_texts(llm), "systems": model.systems}


# --- the tests ----------------------------------------------------------------------------------------------------

WAYS = pytest.mark.parametrize("way", ["sync", "async"])


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[MemorySession]:
    store = SqliteStore(tmp_path / "memory.db")
    yield session_of(store)
    await store.close()


def checkpointed(folder: Path) -> bytes:
    """All bytes that LangGraph kept."""
    return b"".join(path.read_bytes() for path in folder.glob("checkpoints.db*"))


def die(mode: str, folder: Path, way: str) -> Any:
    """Another process begins the run and dies; what it printed."""
    command = [sys.executable, "-W", "error", __file__, mode, str(folder), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == KILLED, done.stderr
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else None


@WAYS
async def test_a_turn_read_before_a_crash_is_read_once(tmp_path: Path, memory: MemorySession, way: str) -> None:
    die("die_after_extraction", tmp_path, way)
    before = (await memory.list()).records
    assert [record.text for record in before] == [QUESTION]
    revision = await memory.scope_revision()

    resumed = await run(tmp_path, "resume", way)

    assert resumed == {"read": [], "systems": []}
    assert ((await memory.list(status=None)).records, await memory.scope_revision()) == (before, revision)
    assert (await run(tmp_path, "go_on", way))["read"] == [["I like tea."]]


@WAYS
async def test_a_resumed_model_call_sees_what_the_first_one_saw(
    tmp_path: Path, memory: MemorySession, way: str
) -> None:
    record = (await memory.remember("Ada lives in Paris.")).records[0]
    seen = die("die_in_the_model", tmp_path, way)
    assert "<<Ada lives in Paris.>>" in seen
    await memory.revise(record.id, text="Ada lives in Rome.")
    await memory.remember("Where does Ada live? In Rome, says Bob.")

    resumed = await run(tmp_path, "resume", way)

    assert resumed["systems"] == [seen]
    assert (await run(tmp_path, "go_on", way))["systems"] != [seen]  # another question, another context


@WAYS
async def test_a_record_forgotten_between_crash_and_resume_reads_forgotten(
    tmp_path: Path, memory: MemorySession, way: str
) -> None:
    record = (await memory.remember("Ada lives in Paris.")).records[0]
    await memory.remember("Ada is where Bob is.")
    die("die_in_the_model", tmp_path, way)
    await memory.forget(record.id)

    [system] = (await run(tmp_path, "resume", way))["systems"]

    assert f"[id={record.id} revision=1 origin=asserted] [forgotten]" in system
    assert "<<Ada is where Bob is.>>" in system
    assert "Paris" not in system
    assert b"Paris" not in checkpointed(tmp_path)
    assert record.id.encode() in checkpointed(tmp_path)


@WAYS
async def test_a_turn_that_took_the_process_down_is_read_by_the_next_one(
    tmp_path: Path, memory: MemorySession, way: str
) -> None:
    die("die_in_a_tool", tmp_path, way)
    assert await memory.count() == 0
    assert (await run(tmp_path, "go_on", way))["read"] == [[QUESTION], ["I like tea."]]
    assert sorted(texts((await memory.list()).records)) == ["I like tea.", QUESTION]


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[2]), sys.argv[1], sys.argv[3]))
