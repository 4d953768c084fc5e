"""The doctor on stores that somebody has damaged: every code, and what is no fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fake_models import user
from fakes import ADA, BOB, FakeEmbedder, open_memory, refusal
from postgres_server import fresh_schema, server_uri
from processes import run_script
from sqlite_fakes import contents

from vmem_core import (
    Draft,
    Finding,
    InMemoryStore,
    InvalidRequestError,
    PostgresStore,
    SchemaVersionError,
    SqliteStore,
    StoreUnavailableError,
)
from vmem_core.plan import StoredReceipt
from vmem_core.results import FINDING_CODES
from vmem_core.stores._sqlite_inspection import inspect, inspecting

SECRET = "SENTINEL"
BASE = 1 << 32  # the first number of the first scope


async def fill(store: Any) -> None:
    """Ada: "a" of three revisions and two texts, "b" retracted, "c" met again, "gone" forgotten. And Bob."""
    ada = open_memory(store, embedder=FakeEmbedder())
    await ada.remember_many([Draft(f"{SECRET} tea", "a"), Draft("milk", "b"), Draft("coffee", "c")], operation_id="1")
    await ada.revise("a", text=f"{SECRET} cake", operation_id="2")
    await ada.revise("a", kind="working", metadata={"n": 1}, operation_id="3")
    await ada.retract("b", operation_id="4")
    await ada.remember(f"{SECRET} gone", id="gone", operation_id="5")
    await ada.remember(f"{SECRET} gone", supersede="skip_equal", operation_id="6")
    await ada.forget("gone", operation_id="7")
    await ada.remember("coffee", supersede="skip_equal", operation_id="8")
    await open_memory(store, BOB).extract([user("m1", "Bob is here")], infer=False, operation_id="1")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is sound, to be copied."""
    path = tmp_path_factory.mktemp("sound") / "memory.db"

    async def make() -> None:
        async with SqliteStore(path) as store:
            await fill(store)

    asyncio.run(make())
    return path


@pytest.fixture
def copy(sound: Path, path: Path) -> Path:
    shutil.copy(sound, path)
    return path


def damage(path: Path, *statements: str) -> None:
    """What another program does to the file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma writable_schema = on")
        for statement in statements:
            connection.execute(statement)


async def findings(store: Any) -> list[Finding]:
    found = list(await store.diagnose())
    assert SECRET not in str(found)
    assert SECRET not in str([one.to_json() for one in found])
    assert [Finding.from_json(one.to_json()) for one in found] == found
    return found


async def codes_of(path: Path) -> dict[str, Finding]:
    store = SqliteStore(path)
    found = await findings(store)
    await store.close()
    return {one.code: one for one in found}


def number(place: int) -> int:
    return BASE + place


A, B, C, GONE = (number(place) for place in range(4))
ROW = "update vmem_records set {} where number = {}"
TEXT = "update vmem_revisions set {} where number = {} and revision = {}"
RECEIPT = "update vmem_receipts set {} where number = {}"
FROM = "from vmem_revisions"
VECTOR = "update vmem_vectors_1 set {} where number = {}"

# What is done, and every code that it brings.
DAMAGES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "a receipt that names a revision to come": (
        (RECEIPT.format("""body = replace(body, '"c",1', '"c",9')""", BASE + 1),),
        {"change_ahead", "revision_unlisted"},
    ),
    "a current revision without its row": (
        (f"delete from vmem_revisions where number = {C}",),
        {"change_lost", "head_missing"},
    ),
    "a revision stamped otherwise than its receipt": (
        (TEXT.format("recorded_at = recorded_at - 1", C, 1),),
        {"change_mismatch"},
    ),
    "a revision of another operation": (
        (TEXT.format("scope_revision = 3", A, 2),),
        {"change_mismatch", "revision_unlisted"},
    ),
    "a receipt that names nobody's record": (
        (RECEIPT.format("""body = replace(body, '"c"', '"nobody"')""", BASE + 1),),
        {"change_unknown", "revision_unlisted"},
    ),
    "a receipt that names another scope's record": (
        (f"update vmem_records set number = {3 << 32} where record_id = 'c'",),
        {"change_unknown", "orphan_rows", "record_lost"},
    ),
    "a number that is none": (("update vmem_scopes set last_stamp = 'x'",), {"file_damaged"}),
    "an index that lacks rows": (
        ("update sqlite_schema set sql = replace(sql, '(changed)', '(state)') where name = 'vmem_records_feed'",),
        {"file_damaged"},
    ),
    "a receipt of a forget that never was": (
        (RECEIPT.format("""body = replace(body, 'revise', 'forget')""", BASE + 3),),
        {"forget_undone", "revision_unlisted"},
    ),
    "a forgotten record with tokens": ((ROW.format("tokens = x'0011223344556677'", GONE),), {"forgotten_index"}),
    "a forgotten record that counts as met": (
        (f"insert into vmem_mentions values({BASE + 6}, {GONE})",),
        {"forgotten_mention"},
    ),
    "a forgotten record with text": (
        (TEXT.format(f"body = (select body from vmem_revisions where number = {C})", GONE, 1),),
        {"forgotten_text"},
    ),
    "a forgotten record with a past vector": (
        (f"insert into vmem_past_vectors_1 values(77, {GONE}, 1, 1, x'00')",),
        {"forgotten_vector"},
    ),
    "a forgotten record with a mark": (
        (f"insert into vmem_unembeddable values(1, {GONE}, 1)",),
        {"forgotten_vector"},
    ),
    "a mark ahead of its record": ((f"insert into vmem_unembeddable values(1, {C}, 9)",), {"vector_revision"}),
    "two pending generations": (
        (
            "insert into vmem_generations values(2, 'b', 8, 'pending', 0), (3, 'c', 8, 'pending', 0)",
            *(f"create table vmem_{past}vectors_{n}(number, entry, since, revision, vector)"
              for n in (2, 3) for past in ("", "past_")),
        ),
        {"generation_states"},
    ),
    "a generation of no state": (
        ("insert into vmem_generations values(2, 'b', 8, 'odd', 0)",),
        {"generation_states"},
    ),
    "a pending generation without tables": (
        ("insert into vmem_generations values(2, 'b', 8, 'pending', 0)",),
        {"generation_tables"},
    ),
    "tables of no generation": (
        ("create table vmem_vectors_9(number, since, revision, vector)",),
        {"generation_tables"},
    ),
    "a head behind the feed": ((ROW.format("changed = changed - 1", A),), {"head_changed"}),
    "a tombstone that no receipt made": ((ROW.format(f"changed = {BASE + 6}", GONE),), {"head_changed"}),
    "a head that points elsewhere": ((ROW.format("entry = 1", A),), {"head_entry"}),
    "a current revision without content": (
        (TEXT.format("body = cast(zeroblob(length(cast(body as blob))) as text)", C, 1),),
        {"head_erased"},
    ),
    "a head that is no revision": (
        (ROW.format("revision = 7", B),),
        {"head_missing", "vector_revision"},
    ),
    **{
        f"a column that says otherwise: {said}": ((ROW.format(said, A),), {"index_columns"})
        for said in (
            "state = 0", "kind = 0", "origin = 1", "expires_at = 5", "text_key = 5", "text_key = null", "tokens = x''",
            "tokens = tokens || tokens", "tokens = 'text'", "facets = x''",
        )
    },
    "a record met in an operation to come": (
        (f"insert into vmem_mentions values({BASE + 99}, {C})",),
        {"mention_unknown"},
    ),
    "a record met in another scope": (
        (f"insert into vmem_mentions values({(2 << 32) + 1}, {C})",),
        {"mention_unknown"},
    ),
    **{
        f"rows that belong to nothing: {table}, {row[:12]}": ((f"insert into {table} values({row})",), {"orphan_rows"})
        for table, row in (
            ("vmem_revisions", f"99, {A + 50}, 1, 1, 1, '{SECRET}'"),
            ("vmem_revisions", f"99, {9 << 32}, 1, 1, 1, '{SECRET}'"),
            ("vmem_records", f"{9 << 32}, '{SECRET}', 1, 1, 1, 1, 0, 0, null, null, x'', x''"),
            ("vmem_receipts", f"{(9 << 32) + 1}, 9, '{SECRET}', 1, 0, x'01', '[]'"),
            ("vmem_receipts", f"{(9 << 32) + 1}, 1, '{SECRET}', 1, 0, x'01', '[]'"),
            ("vmem_mentions", f"{BASE + 1}, {A + 50}"),
            ("vmem_messages", f"9, '{SECRET}'"),
            ("vmem_unembeddable", f"1, {A + 50}, 1"),
            ("vmem_unembeddable", f"9, {A}, 1"),
            ("vmem_vectors_1", f"{A + 50}, 1, 1, x'00'"),
            ("vmem_past_vectors_1", f"99, {A + 50}, 1, 1, x'00'"),
        )
    },
    "a redacted receipt with its digest": ((RECEIPT.format("redacted = 1", BASE + 4),), {"receipt_digest"}),
    "a digest that is gone": ((RECEIPT.format("request = zeroblob(48)", BASE + 4),), {"receipt_digest"}),
    "a receipt lost among others": ((f"delete from vmem_receipts where number = {BASE + 3}",), {"receipt_missing"}),
    "the newest receipt lost": ((f"delete from vmem_receipts where number = {BASE + 8}",), {"receipt_missing"}),
    "a receipt that is not redacted": (
        (RECEIPT.format("redacted = 0, request = randomblob(48)", BASE + 5),),
        {"receipt_not_redacted"},
    ),
    "a receipt that is no JSON": ((RECEIPT.format(f"body = '{SECRET}'", BASE + 3),), {"receipt_unreadable"}),
    "a receipt of an unknown verb": (
        (RECEIPT.format(f"""body = replace(body, '"revise"', '"{SECRET}"')""", BASE + 3),),
        {"receipt_unreadable"},
    ),
    "more records than the scope counts": (
        ("update vmem_scopes set records = 3 where scope_id = 1",),
        {"record_beyond"},
    ),
    "fewer records than the scope counts": (
        ("update vmem_scopes set records = 9 where scope_id = 1",),
        {"record_lost"},
    ),
    "a revision above the head": (
        (f"insert into vmem_revisions select 99, number, 2, 8, recorded_at, body {FROM} where number = {C}",),
        {"revision_above_head", "revision_unlisted"},
    ),
    "a hole in the history": (
        (f"delete from vmem_revisions where number = {A} and revision = 2",),
        {"revision_gap", "change_lost"},
    ),
    "a history without its beginning": (
        (f"delete from vmem_revisions where number = {A} and revision = 1", "delete from vmem_past_vectors_1"),
        {"revision_gap", "change_lost"},
    ),
    "an erased revision above one that is kept": (
        (TEXT.format("body = cast(zeroblob(9) as text)", A, 2),),
        {"revision_gap"},
    ),
    "a history out of order": (
        (TEXT.format("scope_revision = 6", A, 2),),
        {"change_mismatch", "revision_order", "revision_unlisted"},
    ),
    "a revision twice": (
        (
            "drop index vmem_revisions_number",
            f"insert into vmem_revisions select 99, number, 1, 1, recorded_at, body {FROM} where entry = 2",
        ),
        {"revision_order"},
    ),
    "a body that is cut off": ((TEXT.format("body = substr(body, 1, 20)", A, 1),), {"revision_unreadable"}),
    "a body that is no UTF-8": (
        (TEXT.format("body = cast(cast(replace(body, 'tea', 't') as blob) || x'ff' as text)", A, 1),),
        {"revision_unreadable"},
    ),
    "a body of another shape": ((TEXT.format("""body = '{"text": 1}'""", A, 1),), {"revision_unreadable"}),
    "a text that no string of ours can be": (
        (TEXT.format("""body = replace(body, 'tea', '\\ud800')""", A, 1),),
        {"revision_unreadable"},
    ),
    "a scope behind its receipts": (
        ("update vmem_scopes set revision = 7 where scope_id = 1",),
        {"mention_unknown", "scope_behind"},
    ),
    "a scope that is none": (
        (f"""update vmem_scopes set scope_key = '["{SECRET}"]' where scope_id = 2""",),
        {"scope_unreadable"},
    ),
    "a last stamp that is not the last": (
        ("update vmem_scopes set last_stamp = 5 where scope_id = 1",),
        {"stamp_behind"},
    ),
    "receipts whose stamps fall": (
        (RECEIPT.format("committed_at = 5", BASE + 6),),
        {"stamps_fall"},
    ),
    "tokens of an older library": (
        ("update vmem_store set value = '0' where name = 'tokenizer'", ROW.format("tokens = x''", A)),
        {"tokenizer_old"},
    ),
    "a vector of zeros": ((VECTOR.format("vector = zeroblob(32)", C),), {"vector_length"}),
    "a vector that is no number": (
        (VECTOR.format("vector = x'0000c07f' || zeroblob(28)", C),),
        {"vector_length"},
    ),
    "a past vector of what is current": (
        ("update vmem_past_vectors_1 set revision = 3",),
        {"vector_past"},
    ),
    "a past vector of what is no longer kept": (
        (TEXT.format("body = cast(zeroblob(length(cast(body as blob))) as text)", A, 1),),
        {"vector_past"},
    ),
    "a vector behind its record": ((VECTOR.format("revision = 2", A),), {"vector_revision"}),
    "a vector ahead of its record": ((VECTOR.format("revision = 9", C),), {"vector_revision"}),
    "a vector that ends before it begins": ((VECTOR.format("since = 9", C),), {"vector_revision"}),
    "a vector of another size": ((VECTOR.format("vector = zeroblob(16)", C),), {"vector_size"}),
    "a vector of half a number": ((VECTOR.format("vector = zeroblob(30)", C),), {"vector_size"}),
    "a vector of two texts": ((VECTOR.format("since = 1", A),), {"vector_text"}),
}  # fmt: skip


async def test_a_sound_file_has_nothing_to_find(copy: Path) -> None:
    assert await codes_of(copy) == {}


@pytest.mark.parametrize("name", DAMAGES)
async def test_what_is_damaged_is_found_and_nothing_else(copy: Path, name: str) -> None:
    statements, wanted = DAMAGES[name]
    damage(copy, *statements)
    assert set(await codes_of(copy)) == wanted


def test_every_code_is_brought_about_by_some_damage() -> None:
    assert set().union(*(codes for _, codes in DAMAGES.values())) == set(FINDING_CODES)


def test_the_page_of_the_doctor_has_an_entry_for_every_code_and_no_other() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(FINDING_CODES)


async def test_a_finding_says_where(copy: Path) -> None:
    damage(copy, RECEIPT.format("redacted = 1", BASE + 4), ROW.format("kind = 0, origin = 1", A))
    found = await codes_of(copy)
    assert found["receipt_digest"] == Finding(
        "receipt_digest", ADA, None, "4", "redacted, but its request's digest is kept"
    )
    assert found["index_columns"] == Finding(
        "index_columns", ADA, "a", None, "kind, origin differ from what revision 3 says"
    )


def test_a_finding_of_an_unknown_code_cannot_be_built() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Finding("odd")
    assert caught.value.path == "finding.code"


async def test_what_pruning_takes_is_no_fault(copy: Path) -> None:
    damage(
        copy,
        f"delete from vmem_receipts where number <= {BASE + 4}",
        f"delete from vmem_mentions where receipt <= {BASE + 4}",
        TEXT.format("body = cast(zeroblob(length(cast(body as blob))) as text)", A, 1),
        "delete from vmem_past_vectors_1",
        TEXT.format("body = cast(zeroblob(length(cast(body as blob))) as text)", B, 1),
    )
    assert await codes_of(copy) == {}
    damage(copy, "delete from vmem_receipts")
    assert await codes_of(copy) == {}


async def test_a_generation_that_waits_may_have_vectors_of_earlier_revisions(copy: Path) -> None:
    damage(
        copy,
        "insert into vmem_generations values(2, 'b', 8, 'pending', 0)",
        "create table vmem_vectors_2 as select * from vmem_vectors_1",
        "create table vmem_past_vectors_2(entry, number, since, revision, vector)",
        f"update vmem_vectors_2 set since = 1, revision = 1 where number = {A}",
    )
    assert await codes_of(copy) == {}
    damage(copy, f"update vmem_vectors_2 set revision = 9 where number = {A}")
    assert set(await codes_of(copy)) == {"vector_revision"}


async def test_a_generation_that_is_over_leaves_no_tables(copy: Path) -> None:
    damage(copy, "insert into vmem_generations values(2, 'b', 8, 'retired', 0)")
    assert await codes_of(copy) == {}
    damage(copy, "create table vmem_vectors_2 as select * from vmem_vectors_1")
    assert set(await codes_of(copy)) == {"generation_tables"}


async def test_a_file_whose_pages_are_torn_is_a_finding_not_an_error(copy: Path) -> None:
    (page,) = (root for (root,) in look_up(copy, "select rootpage from sqlite_schema where name = 'vmem_revisions'"))
    size = look_up(copy, "pragma page_size")[0][0]
    with copy.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    found = await codes_of(copy)
    assert "file_damaged" in found
    assert "the rest cannot be read" in found["file_damaged"].detail


def look_up(path: Path, statement: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


async def test_to_write_a_record_anew_mends_its_columns_and_its_vector(copy: Path) -> None:
    damage(copy, ROW.format("state = 0, kind = 0, tokens = x'', facets = x'', text_key = 5, changed = changed - 1", A))
    damage(copy, f"delete from vmem_vectors_1 where number = {A}")
    async with SqliteStore(copy) as store:
        ada = open_memory(store, embedder=FakeEmbedder())
        text = (await ada.history("a"))[-1].text
        await ada.revise("a", text="another")
        await ada.revise("a", text=text)
        assert await store.diagnose() == []
        assert [hit.record.id for hit in await ada.recall("cake")][:1] == ["a"]


# ------------------------------------------------------------------------------------------------ nothing is changed


async def test_the_doctor_changes_no_byte_and_leaves_no_file(copy: Path) -> None:
    damage(copy, RECEIPT.format("redacted = 1", BASE + 4), "update vmem_store set value = '0' where name = 'tokenizer'")
    before = contents(copy.parent)
    assert set(await codes_of(copy)) == {"receipt_digest", "tokenizer_old"}
    assert contents(copy.parent) == before


async def test_the_log_that_a_dead_process_left_stays_as_it_is(copy: Path, tmp_path: Path) -> None:
    async with SqliteStore(copy) as store:
        for text in ("late", "later"):
            await open_memory(store).remember(text)
        dead = tmp_path / "dead"
        shutil.copytree(copy.parent, dead)
    before = contents(dead)
    assert before["memory.db-wal"]
    assert await codes_of(dead / copy.name) == {}
    after = contents(dead)
    assert {name: after[name] for name in ("memory.db", "memory.db-wal")} == {
        name: before[name] for name in ("memory.db", "memory.db-wal")
    }
    async with SqliteStore(dead / copy.name) as store:
        assert await open_memory(store).scope_revision() == 10


def test_its_connection_writes_no_row_and_cannot(copy: Path) -> None:
    connection = inspecting(str(copy), timedelta(0))
    assert inspect(connection, None, None) == []
    assert connection.total_changes == 0
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("delete from vmem_receipts")
    connection.close()


async def test_a_file_that_is_not_there_is_not_made(path: Path) -> None:
    assert await codes_of(path) == {}
    assert contents(path.parent) == {}


async def test_another_programs_file_is_left_as_it_is(path: Path) -> None:
    damage(path, "create table orders(x)")
    before = contents(path.parent)
    assert await codes_of(path) == {}
    assert contents(path.parent) == before


async def test_a_newer_schema_and_another_language_are_refused_as_everywhere(copy: Path) -> None:
    store = SqliteStore(copy, language="german")
    assert isinstance(await refusal(store.diagnose()), InvalidRequestError)
    await store.close()
    damage(copy, "update vmem_schema set version = 99")
    store = SqliteStore(copy)
    assert isinstance(await refusal(store.diagnose()), SchemaVersionError)
    await store.close()


async def test_a_closed_store_is_told(copy: Path) -> None:
    for store in (SqliteStore(copy), InMemoryStore()):
        await store.diagnose()
        await store.close()
        assert isinstance(await refusal(store.diagnose()), StoreUnavailableError)


# Nobody's rights bind root, so a root gives them up; what is imported later it could not read perhaps.
UNPRIVILEGED = """
import vmem_core.stores._sqlite, vmem_core.stores._transaction, concurrent.futures.thread
from vmem_core import tokens
tokens.text_hashes("warm", "english")
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

async def main():
    store = SqliteStore(PATH)
    say([finding.code for finding in await store.diagnose()])
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("folder", [0o555, 0o755])
def test_a_file_that_cannot_be_written_is_looked_at_all_the_same(sound: Path, folder: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "memory.db"
        shutil.copy(sound, path)
        damage(path, RECEIPT.format("redacted = 1", BASE + 4))
        before = contents(path.parent)
        path.chmod(0o444)
        path.parent.chmod(folder)
        assert [json.loads(line) for line in run_script(UNPRIVILEGED, path)] == [["receipt_digest"]]
        path.parent.chmod(0o755)
        assert contents(path.parent) == before


async def test_a_look_is_of_one_snapshot_while_others_write(path: Path) -> None:
    store = SqliteStore(path)
    memory = open_memory(store, embedder=FakeEmbedder())
    await memory.remember_many([Draft(f"tea {n}") for n in range(600)])
    written: list[Any] = []

    def write(done: int, total: int) -> None:
        written.append(memory.sync.remember_many([Draft(f"late {n}") for n in range(3)]))
        memory.sync.forget(written[-1].records[0].id)

    assert await store.diagnose(progress=write) == []
    assert len(written) == 3
    assert await store.diagnose() == []
    assert await memory.count() == 606
    await store.close()


# --------------------------------------------------------------------------------------------------- the other stores


@pytest.fixture
async def memory_store() -> InMemoryStore:
    store = InMemoryStore()
    await fill(store)
    return store


def lose_receipt(store: InMemoryStore) -> None:
    del store._scopes[ADA.key].receipts["3"]


def undo_redaction(store: InMemoryStore) -> None:
    receipts = store._scopes[ADA.key].receipts
    receipts["5"] = StoredReceipt(replace(receipts["5"].receipt, redacted=False), receipts["4"].request)


def set_row(record_id: str, **values: Any) -> Callable[[InMemoryStore], None]:
    def change(store: InMemoryStore) -> None:
        for name, value in values.items():
            setattr(store._rows[record_id], name, value)

    return change


def set_scope(**values: Any) -> Callable[[InMemoryStore], None]:
    def change(store: InMemoryStore) -> None:
        for name, value in values.items():
            setattr(store._scopes[ADA.key], name, value)

    return change


def lose_scope(store: InMemoryStore) -> None:
    del store._scopes[BOB.key]


def lose_revision(place: int) -> Callable[[InMemoryStore], None]:
    def change(store: InMemoryStore) -> None:
        row = store._rows["a"].revisions[place]
        row.pruned_stamp, row.record = row.recorded_at, None

    return change


NOT_FORGOTTEN = {"head_changed", "forgotten_text", "forgotten_index", "forgotten_vector", "receipt_not_redacted"}
IN_MEMORY: dict[str, tuple[Callable[[InMemoryStore], None], set[str]]] = {
    "a receipt is lost": (lose_receipt, {"receipt_missing"}),
    "a redaction is undone": (undo_redaction, {"receipt_not_redacted"}),
    "tokens are of another text": (set_row("a", tokens=b""), {"index_columns"}),
    "the text's key is another": (set_row("a", key=5), {"index_columns"}),
    "the vector is of another size": (set_row("a", vector=b"1234"), {"vector_size"}),
    "the vector is of two texts": (set_row("a", vector_since=1), {"vector_text"}),
    "a forgotten record has a vector": (set_row("gone", vector=b"1234"), {"forgotten_vector"}),
    "a forgotten record has tokens": (set_row("gone", tokens=b"1"), {"forgotten_index"}),
    "a forgotten record counts as met": (set_row("gone", mentioned_by=[3]), {"forgotten_mention"}),
    "a mark is ahead": (set_row("c", unembeddable=9), {"vector_revision"}),
    "a forget is undone": (set_row("b", forgotten=True), NOT_FORGOTTEN),
    "a tombstone that no receipt made": (set_row("gone", forgotten_at=3), {"head_changed"}),
    "the scope is behind": (set_scope(revision=7), {"scope_behind", "mention_unknown"}),
    "the stamp is behind": (set_scope(last_stamp=5), {"stamp_behind"}),
    "the scope is lost": (lose_scope, {"orphan_rows"}),
    "an erased revision above one that is kept": (lose_revision(1), {"revision_gap"}),
    "a pruned revision": (lose_revision(0), {"vector_past"}),
}


@pytest.mark.parametrize("name", IN_MEMORY)
async def test_what_is_damaged_in_memory_is_found_and_nothing_else(memory_store: InMemoryStore, name: str) -> None:
    assert await memory_store.diagnose() == []
    change, wanted = IN_MEMORY[name]
    change(memory_store)
    assert {one.code for one in await findings(memory_store)} == wanted


ON_A_SERVER = {
    name: DAMAGES[name]
    for name in (
        "a receipt that names a revision to come",
        "a current revision without its row",
        "a forgotten record that counts as met",
        "a head behind the feed",
        "a vector of two texts",
        "a receipt lost among others",
        "a receipt that is no JSON",
        "a hole in the history",
        "a scope behind its receipts",
        "tokens of an older library",
    )
} | {
    "tables of no generation": (
        ("create table vmem_vectors_9(number bigint, since integer, revision integer, vector bytea)",),
        {"generation_tables"},
    ),
    "a forgotten record with tokens": ((ROW.format("tokens = 'x'", GONE),), {"forgotten_index"}),
    "a vector of another size": ((VECTOR.format("vector = '[1,2]'", C),), {"vector_size"}),
    "a redacted receipt with its digest": ((RECEIPT.format("redacted = 1", BASE + 4),), {"receipt_digest"}),
    "rows that belong to nothing": ((f"insert into vmem_messages values(999, '{SECRET}')",), {"orphan_rows"}),
}


async def test_what_is_damaged_on_a_server_is_found_and_nothing_else() -> None:
    with fresh_schema() as schema, psycopg.connect(server_uri(), autocommit=False) as connection:
        store = PostgresStore(server_uri(), schema=schema)
        await fill(store)
        assert await findings(store) == []
        connection.execute(f'set search_path to "{schema}"')  # type: ignore[arg-type]
        connection.commit()
        for statements, wanted in ON_A_SERVER.values():
            tables = [row[0] for row in connection.execute(TABLES_OF, (schema,))]
            for table in tables:
                connection.execute(f"create temporary table keep_{table} as table {table}")  # type: ignore[arg-type]
            for statement in statements:
                connection.execute(statement.replace("x''", "''"))  # type: ignore[arg-type]
            connection.commit()
            assert {one.code for one in await findings(store)} == wanted, statements
            restore(connection, schema, tables)
        assert await findings(store) == []
        await store.close()


TABLES_OF = "select tablename from pg_tables where schemaname = %s"


def restore(connection: Any, schema: str, tables: list[str]) -> None:
    """Every table as it was."""
    for row in connection.execute(TABLES_OF, (schema,)).fetchall():
        if row[0] not in tables:
            connection.execute(f"drop table {row[0]}")
    for table in tables:
        connection.execute(f"delete from {table}")
        overriding = "overriding system value" if table == "vmem_scopes" else ""
        connection.execute(f"insert into {table} {overriding} select * from keep_{table}")
        connection.execute(f"drop table keep_{table}")
    connection.commit()


async def test_a_schema_without_tables_has_nothing_to_find_and_gets_none() -> None:
    with fresh_schema() as schema, psycopg.connect(server_uri()) as connection:
        store = PostgresStore(server_uri(), schema=schema)
        assert await store.diagnose() == []
        await store.close()
        assert connection.execute(TABLES_OF, (schema,)).fetchall() == []
