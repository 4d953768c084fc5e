"""The command line: what it prints, what it refuses, and that looking changes nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes import Clock, FakeEmbedder
from hypothesis import example, given
from hypothesis import strategies as st

from vmem_core import Finding, LocalEmbedder, MemorySession, Scope, SqliteStore, cli
from vmem_core.cli.opening import parse_scope, spell_scope
from vmem_core.cli.output import one_line, visible

ADA = Scope(user_id="ada")
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Ran:
    """What a command answered."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def vmem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``vmem`` in an empty folder, as the script does."""
    monkeypatch.chdir(tmp_path)
    for name in ("VMEM_STORE", "FORCE_COLOR", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["vmem", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, *capsys.readouterr())

    return run


def fill(path: Path, scope: Scope = ADA, embedder: Any = None, **more: Any) -> Any:
    """A session on a file; close it with ``close``."""
    return MemorySession(SqliteStore(path, **more), scope, embedder=embedder)


@pytest.fixture
def tea(tmp_path: Path) -> str:
    """A file with one scope: a record of two revisions, whose id this is, and a record that a model retracted."""
    session = fill(tmp_path / "vmem.db")
    memory = session.sync
    record = memory.remember("Ada drinks green tea.", id="rec-tea").records[0]
    memory.revise(record.id, text="Ada drinks black tea.", metadata={"topic": "drinks"}, importance=0.5)
    memory.retract(memory.remember("Ada owns a boat.", id="rec-boat", origin="inferred").records[0].id)
    session.store.sync.close()
    return record.id


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


# --- looking ----------------------------------------------------------------------------------------------------


def test_list_shows_what_is_active_and_with_all_what_was_retracted(vmem: Run, tea: str) -> None:
    shown = vmem("list").out
    assert lines(shown)[-1] == "1 shown · user_id=ada · vmem.db"
    assert re.search(r"^rec-tea +2 +asserted +active +semantic +\S+ \S+ +Ada drinks black tea\.$", shown, re.MULTILINE)
    assert "rec-boat" not in shown
    assert re.search(r"^rec-boat +2 +inferred +retracted ", vmem("list", "--all").out, re.MULTILINE)


def test_list_says_that_there_are_more(vmem: Run, tea: str) -> None:
    assert "1 shown, and there are more: raise --limit" in vmem("list", "--all", "--limit", "1").out


def test_show_tells_all_about_a_record(vmem: Run, tea: str) -> None:
    shown = lines(vmem("show", tea).out)
    facts = dict(line.split(maxsplit=1) for line in shown[: shown.index("")])
    assert (facts["id"], facts["revision"], facts["origin"], facts["status"]) == ("rec-tea", "2", "asserted", "active")
    assert facts["importance"] == "0.5"
    assert json.loads(facts["metadata"]) == {"topic": "drinks"}
    assert facts["source"].startswith("host · sha256:")
    assert shown[-1] == "Ada drinks black tea."


def test_show_tells_of_a_record_that_has_expired(vmem: Run, tmp_path: Path) -> None:
    session = fill(tmp_path / "vmem.db", clock=Clock())
    session.sync.remember("Ada's room is 12.", id="room", ttl=timedelta(days=1))
    session.store.sync.close()
    assert ", expired" in vmem("show", "room").out
    assert vmem("list").out == "nothing is remembered for user_id=ada in vmem.db\n"


def test_history_shows_every_revision_oldest_first_with_its_sources(vmem: Run, tea: str) -> None:
    shown = lines(vmem("history", tea).out)
    assert [line.split()[0] for line in shown[1:]] == ["1", "2"]
    assert shown[1].endswith("host     Ada drinks green tea.")
    assert shown[2].endswith("host     Ada drinks black tea.")


def test_search_without_vectors_finds_by_words_and_says_so(vmem: Run, tea: str) -> None:
    found = vmem("search", "black teas").out
    assert re.search(r"^words #1 +rec-tea ", found, re.MULTILINE)
    assert found.endswith("1 found · by words only: the store holds no vectors\n")
    assert vmem("search", "elephants").out == "nothing found · by words only: the store holds no vectors\n"


def test_search_uses_the_local_embedder_where_the_vectors_are_of_its_model(vmem: Run, tmp_path: Path) -> None:
    session = fill(tmp_path / "vmem.db", embedder=LocalEmbedder())
    session.sync.remember("Ada owns a dog.", id="dog")
    session.store.sync.close()
    found = vmem("search", "her pet").out
    assert re.search(r"^meaning #1 +dog ", found, re.MULTILINE)
    assert found.endswith("1 found · by meaning and words (wordllama-l2-256)\n")


def test_search_by_words_says_which_model_it_lacks(vmem: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = fill(tmp_path / "other.db", embedder=FakeEmbedder())
    session.sync.remember("Ada owns a dog.", id="dog")
    session.store.sync.close()
    assert "by words only: the vectors are of " in vmem("search", "dog", "--store", "other.db").out
    session = fill(tmp_path / "vmem.db", embedder=LocalEmbedder())
    session.sync.remember("Ada owns a dog.", id="dog")
    session.store.sync.close()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "versioned-memory[local]"' in vmem("search", "dog").out


def test_json_holds_whole_records_for_scripts(vmem: Run, tea: str) -> None:
    listed = json.loads(vmem("list", "--json").out)
    shown = json.loads(vmem("show", tea, "--json").out)
    history = json.loads(vmem("history", tea, "--json").out)
    found = json.loads(vmem("search", "tea", "--json").out)
    assert listed == [shown] == [history[-1]] == [found[0]["record"]]
    assert [record["text"] for record in history] == ["Ada drinks green tea.", "Ada drinks black tea."]
    assert json.loads(vmem("search", "elephants", "--json").out) == []


# --- scopes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def two_scopes(tmp_path: Path) -> Path:
    path = tmp_path / "vmem.db"
    for scope, text in ((ADA, "Ada likes tea."), (Scope(user_id="o'neil", chat_id="c 1"), "Neil likes tea.")):
        session = fill(path, scope)
        session.sync.remember(text)
        session.store.sync.close()
    return path


def test_several_scopes_must_be_chosen_from_and_are_listed_as_they_can_be_typed(vmem: Run, two_scopes: Path) -> None:
    refused = vmem("list")
    assert (refused.code, refused.out) == (2, "")
    options = [shlex.split(line)[:2] for line in lines(refused.err)[1:]]
    assert options == [["--scope", "user_id=ada"], ["--scope", "user_id=o'neil,chat_id=c 1"]]
    assert [vmem("list", *option).code for option in options] == [0, 0]
    assert "Neil likes tea." in vmem("list", "--scope", "user_id=o'neil", "--scope", "chat_id=c 1").out


def test_a_scope_matches_exactly(vmem: Run, two_scopes: Path) -> None:
    assert vmem("list", "--scope", "user_id=o'neil").out.startswith("nothing is remembered for user_id=o'neil")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["user=ada"],
            "vmem: --scope 'user=ada' is of no field that there is; write it as --scope user_id=ada; the fields are "
            "user_id, agent_id, run_id, actor_id, chat_id\n",
        ),
        (["chat=c 1"], "'chat=c 1' is of no field that there is; write it as --scope 'chat_id=c 1'; "),
        (["Agent-Id = bot"], "write it as --scope agent_id=bot; "),
        (["shoe=ada"], "write it as --scope user_id=ada; "),
        (["ada"], "--scope 'ada' is not field=value; write it as --scope user_id=ada; "),
        (["="], "write it as --scope user_id=ada; "),
        (["user_id=a", "user_id=b"], "names user_id twice"),
        (["user_id=a,user_id=b"], "names user_id twice"),
    ],
)
def test_a_scope_that_is_none_is_a_wrong_call(vmem: Run, tea: str, options: list[str], message: str) -> None:
    ran = vmem("list", *(part for option in options for part in ("--scope", option)))
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize(
    "command", [("list",), ("doctor",), ("search", "tea"), ("export",), ("prune", "--history", "1d")]
)
def test_an_address_of_another_kind_says_which_are_known_and_not_the_address(
    vmem: Run, command: tuple[str, ...]
) -> None:
    for scheme in ("mysql", "sqlite", "postgresql+psycopg"):
        ran = vmem(*command, "--store", f"{scheme}://ada:S3cret@db.example/memory")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == (
            f"vmem: --store takes the path of a file, or postgresql://USER@HOST/DATABASE; {scheme}:// is neither\n"
        )


def test_keywords_of_a_server_are_no_store_and_no_file_is_made_of_them(vmem: Run) -> None:
    Path("notes.jsonl").write_text('{"id": "a", "text": "tea"}\n', encoding="utf-8")
    for command in (("list",), ("import", "notes.jsonl", "--scope", "user_id=ada")):
        ran = vmem(*command, "--store", "host=db.example password=S3cret dbname=memory")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.endswith("or postgresql://USER@HOST/DATABASE; KEYWORD=VALUE is neither\n")
        assert "S3cret" not in ran.err
    assert os.listdir() == ["notes.jsonl"]


def test_a_value_of_a_scope_may_hold_a_comma(vmem: Run, tea: str) -> None:
    assert vmem("list", "--scope", "user_id=ada,c1").out == "nothing is remembered for user_id=ada,c1 in vmem.db\n"


def test_a_blank_scope_is_refused_in_one_line(vmem: Run, tea: str) -> None:
    ran = vmem("list", "--scope", "user_id= ")
    assert ran.code == 1
    assert ran.err.startswith("vmem: scope.user_id: ")
    assert len(lines(ran.err)) == 1


FIELDS = ("user_id", "agent_id", "run_id", "actor_id", "chat_id")
VALUES = st.lists(
    st.sampled_from(["a", " ", ",", "=", "{", '"', "'", "\\", "$HOME", "\x1b", "\u202e", "\n", "咖", *FIELDS]),
    max_size=9,
).map(lambda parts: "x" + "".join(parts))


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1))
@example({"user_id": "x,chat_id=y"})
def test_every_scope_can_be_typed_as_it_is_spelt(fields: dict[str, str]) -> None:
    scope = Scope(**fields)
    spelt = spell_scope(scope)
    assert spelt.isprintable()
    assert parse_scope(shlex.split(shlex.quote(spelt))) == scope


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [["list"], ["show", "x"], ["history", "x"], ["search", "x"], ["forget", "x", "--yes"]],
    ids=lambda command: command[0],
)
def test_a_file_that_is_not_there_is_not_made(vmem: Run, tmp_path: Path, command: list[str]) -> None:
    ran = vmem(*command, "--store", "none.db")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "vmem: there is no file none.db; name one with --store or VMEM_STORE, or make one with `vmem demo`\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["list"], ["demo"], ["forget", "x", "--yes"]], ids=lambda command: command[0])
def test_another_programs_database_is_left_as_it_is(vmem: Run, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("create table theirs(x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    ran = vmem(*command, "--store", str(path))
    assert ran.code == 1
    assert "is the database of another program and holds no memories; nothing was changed" in ran.err
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_database_is_refused_in_one_line(vmem: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Some notes. " * 100, encoding="utf-8")
    ran = vmem("list", "--store", "notes.txt")
    assert ran.code == 1
    assert ran.err == "vmem: the file is not a SQLite database; check the path (SQLITE_NOTADB)\n"
    assert path.read_text(encoding="utf-8") == "Some notes. " * 100


@pytest.mark.parametrize("command", ["show", "history", "forget"])
def test_an_unknown_id_is_refused_in_one_line(vmem: Run, tea: str, command: str) -> None:
    ran = vmem(command, "rec-te")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("vmem: no record rec-te in scope user_id=ada: the id is mistyped, ")
    assert len(lines(ran.err)) == 1


def test_the_file_may_be_named_by_the_environment(vmem: Run, tea: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.rename("vmem.db", "moved.db")
    monkeypatch.setenv("VMEM_STORE", "moved.db")
    assert "Ada drinks black tea." in vmem("list").out


def test_an_empty_store_is_told_from_a_missing_scope(vmem: Run, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "vmem.db")
    assert list(store.sync.scopes()) == []
    store.sync.close()
    ran = vmem("list")
    assert (ran.code, ran.err) == (2, "vmem: the store holds no memories yet; `vmem demo` writes some\n")


def test_without_the_extra_one_line_says_what_to_install(vmem: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vmem_core.cli.commands", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    ran = vmem("list")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == 'vmem: the command line needs the extra "cli": pip install "versioned-memory[cli]"\n'


def test_what_the_driver_logs_is_not_printed(tmp_path: Path) -> None:
    code = (
        "import logging; from vmem_core.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "logging.getLogger('psycopg.pool').warning('error connecting')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "--version"], text=True, capture_output=True, cwd=tmp_path, check=True
    )
    assert ran.stdout.startswith("versioned-memory ")
    assert ran.stderr == ""


def test_without_the_demos_extra_one_line_says_what_to_install(
    vmem: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vmem_langchain.demo", None)
    ran = vmem("demo")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == 'vmem: the demo needs the extra "demo": pip install "versioned-memory[demo]"\n'
    assert list(tmp_path.iterdir()) == []


# --- forgetting -------------------------------------------------------------------------------------------------


def held(folder: Path, word: str) -> list[str]:
    return [path.name for path in folder.iterdir() if word.encode() in path.read_bytes()]


def test_forget_leaves_no_byte_in_any_file(vmem: Run, tea: str, tmp_path: Path) -> None:
    assert held(tmp_path, "green") == held(tmp_path, "black") == ["vmem.db"]
    ran = vmem("forget", tea, "--yes")
    assert ran.code == 0
    assert ran.out.startswith("forgotten: 2 revisions deleted, and vmem.db was scrubbed")
    assert held(tmp_path, "green") == held(tmp_path, "black") == []
    assert held(tmp_path, "boat") == ["vmem.db"]
    assert vmem("history", tea).code == 1


def test_forgetting_again_scrubs_again(vmem: Run, tea: str) -> None:
    vmem("forget", tea, "--yes")
    ran = vmem("forget", tea, "--yes")
    assert ran.code == 0
    assert ran.out.startswith("forgotten: it was forgotten before, and vmem.db was scrubbed")


@pytest.mark.parametrize(("answer", "forgotten"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_forget_shows_the_record_and_asks(
    vmem: Run, tea: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, forgotten: bool
) -> None:
    monkeypatch.setattr("typer.confirm", confirming(answer))
    ran = vmem("forget", tea)
    assert "Ada drinks green tea." in ran.out
    assert "Ada drinks black tea." in ran.out
    assert ran.code == (0 if forgotten else 1)
    assert bool(held(tmp_path, "black")) is not forgotten


def confirming(answer: str) -> Callable[..., bool]:
    """What ``typer.confirm`` does with an answer that is typed, or with the end of the input."""
    import typer

    def confirm(text: str, *, abort: bool) -> bool:
        assert text == "Forget this record for good?"
        if answer.strip() != "y" and abort:
            raise typer.Abort
        return True

    return confirm


def test_forget_asks_the_one_at_the_keyboard(tea: str, tmp_path: Path) -> None:
    def answered(text: str) -> int:
        script = [sys.executable, "-c", "from vmem_core.cli import main; main()", "forget", tea]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(script, input=text, text=True, capture_output=True, cwd=tmp_path, env=env).returncode

    assert answered("") == 1
    assert held(tmp_path, "black") == ["vmem.db"]
    assert answered("y\n") == 0
    assert held(tmp_path, "black") == []


def test_a_forget_in_a_scope_that_is_not_there_makes_no_scope(vmem: Run, tea: str, tmp_path: Path) -> None:
    assert vmem("forget", tea, "--yes", "--scope", "user_id=adda").code == 1
    store = SqliteStore(tmp_path / "vmem.db")
    assert list(store.sync.scopes()) == [ADA]
    store.sync.close()


# --- looks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["30", "60", "80", "100", "200"])
def test_an_id_is_never_cut_or_wrapped_on_a_terminal(
    vmem: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    session = fill(tmp_path / "vmem.db", embedder=LocalEmbedder())
    made = session.sync.remember("Ada lives in a small flat near the river, with two cats and a bicycle. " * 5)
    session.store.sync.close()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", columns)
    for command in (["list"], ["search", "river"]):
        assert made.records[0].id in vmem(*command).out


def test_no_colour_where_none_is_wanted(vmem: Run, tea: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32m" in vmem("list").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in vmem("list").out
    monkeypatch.delenv("FORCE_COLOR")
    assert "\x1b" not in vmem("list").out + vmem("history", tea).out + vmem("show", tea).out


HARMFUL = ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\x9b")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stored_text_is_shown_and_never_obeyed(
    vmem: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    text = "[bold]x[/bold] \x1b]0;title\x07 \x1b[2J \u202egnp.exe \x9b31m :smile:"
    session = fill(tmp_path / "vmem.db")
    made = session.sync.remember(text).records[0]
    session.store.sync.close()
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    for command in (["list"], ["show", made.id], ["history", made.id], ["search", "bold"]):
        shown = vmem(*command).out
        assert r"[bold]x[/bold] \x1b]0;title\x07 \x1b[2J" in " ".join(shown.split())
        assert ":smile:" in shown
        assert not [found for found in HARMFUL if found in shown]


def test_json_holds_a_text_to_the_letter_and_no_control_character(vmem: Run, tmp_path: Path) -> None:
    text = 'He said "no" \x1b[31m \u202e \x9b \x7f 咖啡 😀\nand left'
    session = fill(tmp_path / "vmem.db")
    made = session.sync.remember(text).records[0]
    session.store.sync.close()
    out = vmem("show", made.id, "--json").out
    assert json.loads(out)["text"] == text
    assert "咖啡 😀" in out
    assert not [found for found in HARMFUL if found in out]


def test_a_long_text_is_one_line_in_a_list_and_whole_in_show(vmem: Run, tmp_path: Path) -> None:
    text = "a line of some length\n" * 100
    session = fill(tmp_path / "vmem.db")
    made = session.sync.remember(text).records[0]
    session.store.sync.close()
    assert len(lines(vmem("list").out)) == 3
    assert text.rstrip() in vmem("show", made.id).out


def test_visible_keeps_what_is_no_control_character() -> None:
    assert visible("Grüße,\t咖啡 😀 שלום\r\nend") == "Grüße,\t咖啡 😀 שלום\nend"
    assert one_line("x" * 300) == "x" * 200 + "… 300 characters in all"


def test_help_and_version(vmem: Run) -> None:
    assert vmem("--version").out.startswith("versioned-memory ")
    shown = vmem("--help").out
    assert all(command in shown for command in ("demo", "list", "show", "history", "search", "forget"))
    assert vmem("remember").code == 2


# --- the doctor -------------------------------------------------------------------------------------------------


def test_the_doctor_finds_nothing_in_a_sound_file(vmem: Run, tea: str) -> None:
    assert vmem("doctor") == Ran(0, "nothing found: all that vmem.db keeps agrees\n", "")
    assert vmem("doctor", "--json") == Ran(0, "[]\n", "")


@pytest.fixture
def broken(tea: str, tmp_path: Path) -> Path:
    """A file whose index says of a record what its content does not."""
    with closing(sqlite3.connect(tmp_path / "vmem.db")) as connection, connection:
        connection.execute("update vmem_records set tokens = x'' where record_id = ?", (tea,))
        connection.execute("update vmem_receipts set redacted = 1 where (number & 255) = 1")
    return tmp_path / "vmem.db"


def test_the_doctor_lists_what_it_found_and_ends_with_1(vmem: Run, broken: Path) -> None:
    before = broken.read_bytes()
    ran = vmem("doctor")
    assert (ran.code, ran.err) == (1, "")
    shown = lines(ran.out)
    assert shown[0].split() == ["code", "scope", "record", "operation", "what"]
    columns, digest = shown[1:3]
    assert columns.split(maxsplit=3) == [
        "index_columns", '{"user_id":"ada"}', "rec-tea", "tokens differ from what revision 2 says",
    ]  # fmt: skip
    assert digest.startswith("receipt_digest ")
    assert shown[-1] == "2 found; docs/doctor.md says of each code what to do"
    assert broken.read_bytes() == before
    assert "tea" not in ran.out.replace("rec-tea", "")


def test_the_doctor_gives_findings_as_json(vmem: Run, broken: Path) -> None:
    ran = vmem("doctor", "--json")
    assert ran.code == 1
    assert [Finding.from_json(one).code for one in json.loads(ran.out)] == ["index_columns", "receipt_digest"]


def test_the_doctor_counts_on_a_terminal_only(vmem: Run, broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "records" not in vmem("doctor").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    shown = vmem("doctor").out
    assert "records" in shown
    assert "index_columns" in shown


def test_what_cannot_be_looked_at_is_told_from_what_was_found(vmem: Run, tea: str, tmp_path: Path) -> None:
    missing = vmem("doctor", "--store", "nowhere.db")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err.startswith("vmem: there is no file nowhere.db")
    assert not (tmp_path / "nowhere.db").exists()
    with closing(sqlite3.connect("vmem.db")) as connection, connection:
        connection.execute("update vmem_schema set version = 99")
    newer = vmem("doctor")
    assert (newer.code, newer.out) == (2, "")
    assert "99" in newer.err
    assert newer.err.count("\n") == 1
    assert vmem("doctor", "--stroe", "x").code == 2
