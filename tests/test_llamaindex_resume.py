"""A process dies between a tool's commit and its answer; another one restores the run. The write applied once.

This file is also the program that does it: ``python THIS_FILE FOLDER``. It has loaded the framework and nothing else
when it forks two children for each case: one that dies and one that restores the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llama_index.core.workflow import Context
from llamaindex_fakes import (
    AGENTS,
    UPSTREAM,
    Call,
    KeptMemory,
    answers,
    recalling,
    remembering,
    revising_what_was_found,
)

from vmem_core import MemorySession, Scope, SqliteStore
from vmem_llamaindex import create_memory_tools, prepare_context

ADA = Scope(user_id="ada")
KILLED = 9
PARIS = "Ada lives in Paris."

WRITES: dict[str, Callable[[], list[Any]]] = {
    "remember": lambda: [remembering(PARIS)],
    "revise": lambda: [recalling("Where does Ada live?"), revising_what_was_found("Ada lives in Rome.", "call_2")],
}
TWO_AT_ONCE = [Call("memory_remember", {"text": text}, f"call_{text}") for text in ("one", "two")]
TWO_WITH_ONE_ID = [Call(one.tool, one.args, "memory_remember") for one in TWO_AT_ONCE]
CASES: dict[str, tuple[Any, Callable[[], list[Any]]]] = {
    **{f"ours {kind} remember": (make, WRITES["remember"]) for kind, make in AGENTS.items()},
    **{f"theirs {kind} remember": (make, WRITES["remember"]) for kind, make in UPSTREAM.items()},
    "ours ReActAgent revise": (AGENTS["ReActAgent"], WRITES["revise"]),
    "ours FunctionAgent two at once": (AGENTS["FunctionAgent"], lambda: [TWO_AT_ONCE]),
    "theirs FunctionAgent two at once with one id": (UPSTREAM["FunctionAgent"], lambda: [TWO_WITH_ONE_ID]),
}


# --- the program --------------------------------------------------------------------------------------------------


def opened(folder: Path, case: str) -> tuple[SqliteStore, list[Any], Path]:
    store = SqliteStore(folder / f"{case}.db")
    return store, create_memory_tools(MemorySession(store, ADA)), folder / f"{case}.json"


async def die(folder: Path, case: str) -> None:
    """Run until a write has committed. The run was saved as it was when its last call began, and not since."""
    store, tools, saved = opened(folder, case)
    if case.endswith("revise"):
        await MemorySession(store, ADA).remember(PARIS, id="r1", origin="inferred")
    calls = [tool for tool in tools if tool.metadata.name in ("memory_remember", "memory_revise")]
    begun: list[Any] = []
    for tool in calls:
        tool.acall = dying(tool.acall, begun, 2 if "two" in case else 1, lambda: saved.write_text(snapshot(handler)))
    make, steps = CASES[case]
    agent = make(steps(), tools)
    context = Context(agent) if case.startswith("ours") else await prepare_context(Context(agent))
    handler = agent.run("I live in Paris.", ctx=context, memory=KeptMemory())
    await handler
    raise AssertionError("it lived on")


def snapshot(handler: Any) -> str:
    return json.dumps(handler.ctx.to_dict())


def dying(call: Callable[..., Any], begun: list[Any], last: int, save: Callable[[], object]) -> Callable[..., Any]:
    async def acall(**arguments: Any) -> Any:
        begun.append(arguments)
        if len(begun) == last:
            save()
        answer = await call(**arguments)
        if len(begun) == last:
            os._exit(KILLED)
        return answer

    return acall


async def resume(folder: Path, case: str) -> None:
    store, tools, saved = opened(folder, case)
    make, steps = CASES[case]
    agent = make(steps(), tools)
    result = await agent.run(ctx=Context.from_dict(agent, json.loads(saved.read_text())))
    records = (await MemorySession(store, ADA).list(status=None)).records
    revision = await store.scope_revision(ADA)
    await store.close()
    told = {
        "replayed": sorted(one["replayed"] for one in answers(result) if isinstance(one, dict)),
        "texts": sorted(record.text for record in records),
        "scope_revision": revision,
        "last": str(result),
    }
    told_in(folder, case).write_text(json.dumps(told))


def told_in(folder: Path, case: str) -> Path:
    return folder / f"{case} resumed.json"


def main(folder: Path) -> None:
    ended = {}
    for case in CASES:
        died = in_a_child(die, folder, case)
        ended[case] = [died, in_a_child(resume, folder, case)]
    print(json.dumps(ended))


def in_a_child(act: Callable[[Path, str], Any], folder: Path, case: str) -> int:
    """Do something in a process of its own; its exit code."""
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(act(folder, case))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- the test -----------------------------------------------------------------------------------------------------


def run_program(folder: Path) -> Any:
    done = subprocess.run([sys.executable, __file__, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def expected(case: str) -> tuple[list[str], int]:
    if "two at once" in case:
        return ["one", "two"], 2
    return (["Ada lives in Rome."], 2) if case.endswith("revise") else ([PARIS], 1)


def test_what_was_written_before_a_crash_is_written_once(tmp_path: Path) -> None:
    ended, said = run_program(tmp_path)
    assert ended == {case: [KILLED, 0] for case in CASES}, said
    resumed = {case: json.loads(told_in(tmp_path, case).read_text()) for case in CASES}
    assert {case: (got["texts"], got["scope_revision"]) for case, got in resumed.items()} == {
        case: expected(case) for case in CASES
    }
    assert all(got["last"].endswith("done") for got in resumed.values())
    # What was committed is answered as a replay, however often the restored run makes the call.
    assert all(got["replayed"][-1] for got in resumed.values())
    assert all(all(got["replayed"]) for case, got in resumed.items() if "two at once" not in case)
    assert len(resumed) == 9


if __name__ == "__main__":
    main(Path(sys.argv[1]))
