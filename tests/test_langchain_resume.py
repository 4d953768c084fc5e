"""A process dies between a tool's commit and the checkpoint; another one resumes the run. The write applied once.

This file is also the program that dies and the one that resumes: ``python THIS_FILE MODE FOLDER SCRIPT``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_fakes import agent_of, answers, asked, calling, in_thread, remembering, tool_call
from langgraph.checkpoint.sqlite import SqliteSaver

from vmem_core import MemorySession, Scope, SqliteStore
from vmem_langchain import create_memory_tools

ADA = Scope(user_id="ada")
THREAD = in_thread("conversation-1")
KILLED = 9
FATAL = "call_fatal"  # the call whose answer never reaches the graph


class DiesAfterTheCommit(AgentMiddleware):
    """Ends the process once the fatal call has been answered: committed, and no checkpoint knows."""

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        answer = handler(request)
        if request.tool_call["id"] == FATAL:
            os._exit(KILLED)
        return answer


class LosesTheModelsCheckpoint(SqliteSaver):
    """Keeps the writes of tasks, but never gets to write the checkpoint of the model's step: its disk hangs."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if any(message.type == "ai" for message in checkpoint["channel_values"].get("messages", [])):
            threading.Event().wait()
        return super().put(config, checkpoint, metadata, new_versions)


# --- the program --------------------------------------------------------------------------------------------------


def remember() -> list[Any]:
    return [remembering("Ada lives in Paris.", FATAL)]


def remember_two() -> list[Any]:
    first = tool_call("memory_remember", {"text": "Ada likes tea."}, "call_a")
    return [calling(first, tool_call("memory_remember", {"text": "Ada lives in Paris."}, FATAL))]


def revise() -> list[Any]:
    def revise_it(messages: list[Any]) -> Any:
        found = json.loads(messages[-1].content)[0]
        change = {"id": found["id"], "expected_revision": found["revision"], "text": "Ada lives in Rome."}
        return calling(tool_call("memory_revise", change, FATAL))

    return [calling(tool_call("memory_recall", {"query": "Where does Ada live?"}, "call_a")), revise_it]


def retract() -> list[Any]:
    def retract_it(messages: list[Any]) -> Any:
        found = json.loads(messages[-1].content)[0]
        return calling(tool_call("memory_retract", {"id": found["id"], "expected_revision": found["revision"]}, FATAL))

    return [calling(tool_call("memory_recall", {"query": "Where does Ada live?"}, "call_a")), retract_it]


SCRIPTS = {"remember": remember, "remember_two": remember_two, "revise": revise, "retract": retract}


def run(folder: Path, script: str, *middleware: Any, saver: Any = SqliteSaver, durability: Any = "sync") -> Any:
    """One run: a new one if a middleware ends it, else what is left of the last one."""
    store = SqliteStore(folder / "memory.db")
    tools = create_memory_tools(MemorySession(store, ADA))
    with saver.from_conn_string(str(folder / "checkpoints.db")) as opened:
        agent = agent_of(tools, *SCRIPTS[script](), checkpointer=opened, middleware=list(middleware))
        result = agent.invoke(asked("I live in Paris.") if middleware else None, THREAD, durability=durability)
    store.sync.close()
    return {"answers": answers(result), "last": result["messages"][-1].content}


MODES: dict[str, dict[str, Any]] = {
    "die": {},
    "die_async": {"durability": "async"},
    "die_and_lose_the_models_checkpoint": {"saver": LosesTheModelsCheckpoint, "durability": "async"},
}


def main(mode: str, folder: Path, script: str) -> None:
    if mode == "resume":
        print(json.dumps(run(folder, script)))
    else:
        run(folder, script, DiesAfterTheCommit(), **MODES[mode])


# --- the tests ----------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Any]:
    store = SqliteStore(tmp_path / "memory.db")
    yield MemorySession(store, ADA).sync
    store.sync.close()


def run_program(mode: str, folder: Path, script: str) -> str:
    command = [sys.executable, "-W", "error", __file__, mode, str(folder), script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if mode == "resume" else KILLED), done.stderr
    return done.stdout


def checkpointed_replies(folder: Path) -> int:
    """How many replies of the model the last checkpoint holds."""
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        found = saver.get_tuple(THREAD)
        assert found is not None
        return sum(message.type == "ai" for message in found.checkpoint["channel_values"]["messages"])


@pytest.mark.parametrize(
    ("mode", "replies"), [("die", 1), ("die_async", None), ("die_and_lose_the_models_checkpoint", 0)]
)
def test_a_fact_remembered_before_a_crash_is_stored_once(
    tmp_path: Path, memory: Any, mode: str, replies: int | None
) -> None:
    run_program(mode, tmp_path, "remember")
    committed = memory.list().records
    assert [record.text for record in committed] == ["Ada lives in Paris."]
    assert replies is None or checkpointed_replies(tmp_path) == replies

    resumed = json.loads(run_program("resume", tmp_path, "remember"))

    replayed = {"id": committed[0].id, "revision": 1, "origin": "inferred", "status": "active", "replayed": True}
    assert resumed == {"answers": [replayed], "last": "done"}
    assert memory.list(status=None).records == committed
    assert memory.scope_revision() == 1
    assert memory.receipt(committed[0].operation_id).changes[0].record_id == committed[0].id


def test_of_two_calls_the_one_whose_answer_was_lost_is_replayed(tmp_path: Path, memory: Any) -> None:
    run_program("die", tmp_path, "remember_two")
    resumed = run(tmp_path, "remember_two")
    assert sorted(record.text for record in memory.list().records) == ["Ada likes tea.", "Ada lives in Paris."]
    assert memory.scope_revision() == 2
    assert resumed["answers"][1]["replayed"] is True


def test_a_revise_before_a_crash_is_applied_once(tmp_path: Path, memory: Any) -> None:
    record = memory.remember("Ada lives in Paris.", origin="inferred").records[0]
    run_program("die", tmp_path, "revise")
    memory.revise(record.id, text="Ada lives in Oslo.")  # the host goes on meanwhile: the replay answers as it did

    resumed = run(tmp_path, "revise")

    assert resumed["answers"][1] == {
        "id": record.id, "revision": 2, "origin": "inferred", "status": "active", "replayed": True
    }  # fmt: skip
    texts = ["Ada lives in Paris.", "Ada lives in Rome.", "Ada lives in Oslo."]
    assert [one.text for one in memory.history(record.id)] == texts


def test_a_retract_before_a_crash_is_applied_once(tmp_path: Path, memory: Any) -> None:
    record = memory.remember("Ada lives in Paris.", origin="inferred").records[0]
    run_program("die", tmp_path, "retract")
    resumed = run(tmp_path, "retract")
    assert resumed["answers"][1] == {
        "id": record.id, "revision": 2, "origin": "inferred", "status": "retracted", "replayed": True
    }  # fmt: skip
    assert len(memory.history(record.id)) == 2


def test_what_was_forgotten_between_crash_and_resume_stays_forgotten(tmp_path: Path, memory: Any) -> None:
    run_program("die", tmp_path, "remember")
    memory.forget(memory.list().records[0].id)
    resumed = run(tmp_path, "remember")
    assert resumed["answers"] == [{"error": "not_found"}]
    assert memory.list(status=None).records == ()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
