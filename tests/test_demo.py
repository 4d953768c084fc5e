"""The demo: all it promises is checked while it runs, and a library that breaks a promise fails it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEmbedder
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from rich.console import Console

from vmem_core import ForgetResult, MemorySession, Scope, SqliteStore, UnsupportedError, cli
from vmem_langchain import demo
from vmem_langchain.demo import story, tour
from vmem_langchain.demo.script import NotAsPromised, ScriptedModel, call, recalled, say
from vmem_langchain.demo.tour import SCOPE


def run(path: Path, **more: Any) -> tuple[bool, str]:
    """Run the demo on a file: whether all was as promised, and what it printed."""
    out = Console(width=100, record=True, quiet=False, file=open(path.parent / "printed", "w", encoding="utf-8"))  # noqa: SIM115
    store = SqliteStore(path)
    try:
        return demo.run(store, str(path), out, **more), out.export_text()
    finally:
        store.sync.close()
        out.file.close()


def test_everything_is_as_promised(tmp_path: Path) -> None:
    kept, printed = run(tmp_path / "vmem.db")
    assert kept, printed
    assert "NOT AS PROMISED" not in printed
    assert f"{printed.count('✓')} promises checked, all kept." in printed
    assert printed.count("✓") >= 12


def test_it_shows_what_really_happened(tmp_path: Path) -> None:
    _, printed = run(tmp_path / "vmem.db")
    store = SqliteStore(tmp_path / "vmem.db")
    memory = MemorySession(store, SCOPE).sync
    records = {record.text: record for record in memory.list().records}
    assert {text: record.origin for text, record in records.items()} == {
        "Ada is allergic to peanuts.": "asserted",
        "Ada lives in Porto.": "inferred",
        "Grace, Ada's sister, visits in May.": "inferred",
        "Ada says that peanuts are fine for her now.": "inferred",
    }
    home = records["Ada lives in Porto."]
    assert [record.text for record in memory.history(home.id)] == ["Ada lives in Lisbon.", "Ada lives in Porto."]
    assert [source.tool_name for source in home.sources] == ["memory_remember", "memory_revise"]
    store.sync.close()
    assert 'error="revision_conflict", actual_revision=2' in printed
    assert 'error="asserted_record"' in printed
    assert "replayed=true" in printed


def test_the_commands_at_its_end_work_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("VMEM_STORE", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def vmem(*args: str) -> str:
        monkeypatch.setattr(sys, "argv", ["vmem", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert ended.value.code == 0, shown.err
        return shown.out

    def commands(printed: str) -> dict[str, list[str]]:
        typed = [shlex.split(line) for line in printed.splitlines() if line.startswith("  vmem ")]
        return {words[1]: words[1:] for words in typed}

    alone = commands(vmem("demo"))
    assert list(alone) == ["list", "show", "history", "search", "forget"]
    assert alone["list"] == ["list"]
    assert vmem(*alone["list"]).count("Ada") >= 4
    assert "Ada lives in Porto." in vmem(*alone["show"])
    assert "Ada lives in Lisbon." in vmem(*alone["history"])
    assert vmem(*alone["search"]).splitlines()[1].endswith("Ada lives in Porto.")
    assert "1 revision deleted" in vmem(*alone["forget"], "--yes")

    store = SqliteStore("a file.db")
    MemorySession(store, Scope(user_id="grace")).sync.remember("Grace likes tea.")
    store.sync.close()
    beside = commands(vmem("demo", "--store", "a file.db"))
    assert beside["list"] == ["list", "--store", "a file.db", "--scope", "user_id=ada,agent_id=vmem-demo"]
    assert "Ada lives in Porto." in vmem(*beside["history"])


def test_run_again_it_starts_its_own_scope_over_and_touches_no_other(tmp_path: Path) -> None:
    path = tmp_path / "vmem.db"
    store = SqliteStore(path)
    others = [Scope(user_id="ada"), Scope(user_id="ada", agent_id="vmem-demo", chat_id="c1")]
    for other in others:
        MemorySession(store, other).sync.remember("Ada lives in Rome.", id=f"theirs-{other.key}")
    store.sync.close()
    first, printed = run(path)
    again, printed_again = run(path)
    assert first
    assert again
    assert "here before" not in printed
    assert "The demo was here before. It forgot its 4 records, and starts over." in printed_again
    assert "The file holds 2 other scopes: the demo does not touch them." in printed
    store = SqliteStore(path)
    for other in others:
        memory = MemorySession(store, other).sync
        assert memory.scope_revision() == 1
        assert [record.text for record in memory.list().records] == ["Ada lives in Rome."]
    assert MemorySession(store, SCOPE).sync.count() == 4
    store.sync.close()


def test_a_file_with_vectors_of_another_model_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "vmem.db"
    store = SqliteStore(path)
    MemorySession(store, SCOPE, embedder=FakeEmbedder()).sync.remember("Ada lives in Rome.")
    store.sync.close()
    with pytest.raises(UnsupportedError, match="give the demo a file of its own with --store"):
        run(path)
    store = SqliteStore(path)
    memory = MemorySession(store, SCOPE).sync
    assert (memory.scope_revision(), memory.count()) == (1, 1)
    store.sync.close()


# --- a library that breaks its promises -------------------------------------------------------------------------


class OverwritesOthers(MemorySession):
    """Takes any revise for a current one."""

    async def revise(self, record_id: str, **given: Any) -> Any:
        return await super().revise(record_id, **{**given, "expected_revision": None})


class LetsModelsOverwrite(MemorySession):
    """Takes a model for the host."""

    async def revise(self, record_id: str, **given: Any) -> Any:
        return await super().revise(record_id, **{**given, "by_model": False})


class AppliesTwice(MemorySession):
    """Takes each call for a new one."""

    async def remember(self, text: str, **given: Any) -> Any:
        return await super().remember(text, **{**given, "operation_id": None, "supersede": "add"})


class CallsEverythingAsserted(MemorySession):
    """Takes what a model says for the host's."""

    async def remember(self, text: str, **given: Any) -> Any:
        return await super().remember(text, **{**given, "origin": "asserted"})


class HidesOnly(MemorySession):
    """Says that it has forgotten, and has not."""

    async def forget(self, record_id: str, **given: Any) -> Any:
        written = await self.retract(record_id)
        return ForgetResult(written.receipt, revisions=(1, 2), scrubbed=True)


@pytest.mark.parametrize(
    ("broken", "claim"),
    [
        (OverwritesOthers, "refused, and told that revision"),
        (LetsModelsOverwrite, "refused as"),
        (AppliesTwice, "the tool ran again, and answered with the stored receipt"),
        (CallsEverythingAsserted, "origin asserted, source assistant"),
        (HidesOnly, "after: 2 revisions deleted, and neither code is found"),
    ],
)
def test_a_broken_promise_is_told_and_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: type[MemorySession], claim: str
) -> None:
    monkeypatch.setattr(tour, "MemorySession", broken)
    kept, printed = run(tmp_path / "vmem.db")
    assert not kept
    assert f"✗  NOT AS PROMISED: {claim}" in " ".join(printed.split(" ")).replace("\n", " ")
    assert "all kept" not in printed


def test_a_broken_promise_ends_the_command_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tour, "MemorySession", HidesOnly)
    monkeypatch.setattr(sys, "argv", ["vmem", "demo"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1


# --- the parts --------------------------------------------------------------------------------------------------


def recall_of(*found: dict[str, Any]) -> ToolMessage:
    return ToolMessage(json.dumps(found), name="memory_recall", tool_call_id="c")


def test_a_line_passes_back_what_the_tool_gave() -> None:
    messages = [
        HumanMessage("one"),
        recall_of({"id": "r1", "revision": 1, "text": "Ada lives in Lisbon."}),
        HumanMessage("two"),
        recall_of({"id": "r1", "revision": 7, "text": "Ada lives in Porto."}),
    ]
    line = call("memory_revise", id=recalled("lives", "id"), expected_revision=recalled("lives", "revision"))
    assert line(messages).tool_calls[0]["args"] == {"id": "r1", "expected_revision": 7}
    assert recalled("lives", "revision", recall=0)(messages) == 1
    assert say("It is {text}", text=recalled("lives", "text"))(messages).content == "It is Ada lives in Porto."


def test_a_line_that_was_not_given_what_it_needs_is_a_broken_promise() -> None:
    with pytest.raises(NotAsPromised, match="finds the record about 'lives'"):
        recalled("lives", "id")([HumanMessage("hi"), recall_of()])


def test_the_model_says_its_lines_anew_after_each_message_of_the_user() -> None:
    model = ScriptedModel(lines=[say("first"), say("second")])
    messages = [HumanMessage("a"), AIMessage("before"), HumanMessage("b")]
    assert model.invoke(messages).content == "first"
    assert model.invoke([*messages, AIMessage("first")]).content == "second"


def test_words_are_found_in_all_files_of_a_store_and_in_no_other(tmp_path: Path) -> None:
    for name, content in {"m.db": b"", "m.db-wal": b"x\0kestrel\0", "other.db": b"kestrel"}.items():
        (tmp_path / name).write_bytes(content)
    assert story.holders(str(tmp_path / "m.db"), "kestrel") == ["m.db-wal"]
    assert [file.name for file in story.store_files(str(tmp_path / "m.db"))] == ["m.db", "m.db-wal"]
