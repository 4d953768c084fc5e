"""Every command on a PostgreSQL store: the same as on a file, and none of them makes tables by looking."""

# ruff: noqa: F811 - a fixture is asked for by its name
from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fakes import ADA, BOB
from postgres_server import fresh_schema, server_uri
from test_cli import Run, lines, vmem  # noqa: F401 - a fixture

from vmem_core import MemorySession, PostgresStore, SqliteStore


@pytest.fixture
def schema() -> Iterator[str]:
    with fresh_schema() as name:
        yield name


@pytest.fixture
def address(schema: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``--store`` takes, given by the environment."""
    found = f"{server_uri()}#{schema.replace(' ', '%20')}"
    monkeypatch.setenv("VMEM_STORE", found)
    return found


@pytest.fixture
def filled(schema: str) -> str:
    """The id of the one record."""
    store = PostgresStore(server_uri(), schema=schema)
    record_id: str = MemorySession(store, ADA).sync.remember("Ada likes green tea.", id="tea").records[0].id
    store.sync.close()
    return record_id


def tables(schema: str) -> list[str]:
    with psycopg.connect(server_uri()) as connection:
        rows = connection.execute("select tablename from pg_tables where schemaname = %s", (schema,)).fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize(
    "command", [("list",), ("show", "tea"), ("search", "tea"), ("export",), ("doctor",), ("prune", "--history", "1d")]
)
def test_looking_at_a_database_without_memories_makes_no_table(
    vmem: Run, address: str, schema: str, command: tuple[str, ...]
) -> None:
    ran = vmem(*command, "--store", address)
    assert (ran.code, ran.out) == (2 if command == ("doctor",) else 1, "")
    assert ran.err.startswith("vmem: the database holds no memories there; ")
    assert tables(schema) == []


def test_each_command_works_on_a_server(vmem: Run, filled: str, address: str, tmp_path: Path) -> None:
    def run(*command: str) -> str:
        ran = vmem(*command, "--store", address)
        assert (ran.code, ran.err) == (0, ""), command
        return ran.out

    assert "Ada likes green tea." in run("list")
    assert "Ada likes green tea." in run("show", filled)
    assert "Ada likes green tea." in run("history", filled)
    assert "Ada likes green tea." in run("search", "teas")
    assert "1 found" in run("search", "teas")
    assert json.loads(run("export", "-o", "ada.jsonl", "--json"))["file"] == "ada.jsonl"
    assert lines(run("prune", "--history", "1d", "--dry-run"))[0] == "0 revisions would be deleted"
    run("forget", filled, "--yes")
    assert "Ada likes green tea." not in run("list")
    assert lines(run("doctor")) == ["nothing found: all that the database keeps agrees"]


def test_an_export_goes_from_a_server_into_a_file_and_back(vmem: Run, filled: str, address: str) -> None:
    assert vmem("export", "-o", "one.jsonl", "--store", address).code == 0
    assert vmem("import", "one.jsonl", "--store", "copy.db").code == 0
    assert vmem("export", "-o", "two.jsonl", "--store", "copy.db").code == 0
    assert Path("one.jsonl").read_bytes() == Path("two.jsonl").read_bytes()


def test_a_dry_run_makes_no_table_and_an_import_does(vmem: Run, address: str, schema: str) -> None:
    Path("notes.jsonl").write_text('{"id": "a", "text": "Ada likes tea."}\n', encoding="utf-8")
    command = ("import", "notes.jsonl", "--scope", "user_id=ada", "--store", address)
    assert "1 would be imported" in vmem(*command, "--dry-run").out
    assert tables(schema) == []
    assert "1 imported" in vmem(*command).out
    assert "Ada likes tea." in vmem("list", "--store", address).out


def test_a_move_to_another_model_works_on_a_server(
    vmem: Run, filled: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
class New:
    model, dims = "made", 4

    def embed(self, texts, *, purpose):
        from vmem_core import Embeddings
        return Embeddings([[1.0, len(text), 0.0, 1.0] for text in texts], self.model)
"""
    Path("made_model.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = vmem("reembed", "--embedder", "made_model:New", "--json", "--store", address)
    assert (ran.code, json.loads(ran.out)["activated"]) == (0, True), ran.err
    sys.modules.pop("made_model")


# --- the page that tells how to move from a file to a server ---------------------------------------------------------

PAGE = Path(__file__).resolve().parent.parent / "docs" / "importing.md"
SHOWN = "postgresql://vmem_app@db.example/app"


@pytest.fixture
def section(tmp_path: Path) -> str:
    """What the page says, and the file that it moves."""
    store = SqliteStore(tmp_path / "memory.db")
    ada, bob = MemorySession(store, ADA).sync, MemorySession(store, BOB).sync
    ada.remember("Ada prefers green tea.")
    ada.revise(ada.remember("Ada lives in Turin.", id="home").records[0].id, text="Ada lives in Milan.")
    ada.remember("Ada's secret.", id="secret")
    ada.forget("secret")
    bob.remember("Bob is allergic to nuts.")
    store.sync.close()
    return PAGE.read_text(encoding="utf-8").partition("## From a file to PostgreSQL")[2]


def test_the_commands_that_move_a_file_to_a_server_print_what_the_page_shows(
    vmem: Run, section: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    monkeypatch.delenv("VMEM_STORE")
    for entry in block.split("$ ")[1:]:
        command, _, printed = entry.partition("\n")
        if command == f"export VMEM_STORE={SHOWN}":
            monkeypatch.setenv("VMEM_STORE", address)
        else:
            program, *arguments = shlex.split(command)
            ran = vmem(*arguments)
            assert (program, ran.out + ran.err) == ("vmem", printed)
    assert vmem("export", "--scope", "user_id=ada").out == Path("ada.jsonl").read_text(encoding="utf-8")
    assert "Ada prefers green tea." in vmem("search", "her drink", "--scope", "user_id=ada").out


def test_the_code_that_moves_all_scopes_to_a_server_does_so_and_again_does_nothing(
    section: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert SHOWN in code
    given: list[Any] = []
    monkeypatch.setattr(
        "vmem_core.PostgresStore", lambda dsn: given.append(dsn) or PostgresStore(server_uri(), schema=schema)
    )
    for _ in range(2):
        names: dict[str, Any] = {}
        exec(compile(code, str(PAGE), "exec"), names)
        assert [MemorySession(names["new"], scope).sync.count() for scope in (ADA, BOB)] == [2, 1]
        for store in (names["old"], names["new"]):
            store.sync.close()
    assert given == [SHOWN, SHOWN]


def test_an_address_is_never_printed(vmem: Run, filled: str, address: str) -> None:
    for command in (("list",), ("doctor",), ("search", "tea"), ("forget", filled, "--yes"), ("list",)):
        ran = vmem(*command, "--store", address)
        assert server_uri() not in ran.out + ran.err


def test_a_server_that_is_away_is_told_in_one_line(vmem: Run) -> None:
    ran = vmem("list", "--store", "postgresql:///memory?host=/nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert lines(ran.err) == [
        "vmem: no PostgreSQL server listens at '/nowhere', port 5432; start it, or correct host and port in the "
        "connection string"
    ]


def test_the_demo_wants_a_file(vmem: Run, address: str) -> None:
    ran = vmem("demo", "--store", address)
    assert (ran.code, ran.err) == (2, "vmem: the demo writes to a file: give --store the path of one\n")
