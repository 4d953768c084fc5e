"""Reconciliation: the table of origins, and what a model may never do to the host's words."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from fake_models import (
    FakeLLM,
    add,
    decisions,
    delete,
    noop,
    notes,
    obey,
    update,
)
from fakes import ADA, BOB, START, Clock, Ids, open_memory, refusal, texts
from reconciling import ABOUT, GONE, KEPT, NEW, SAID, SEEN, SUPERSEDES, WORDS, existing, told, write

from vmem_core import (
    Link,
    LLMReply,
    RecordConflictError,
    Store,
)

# ------------------------------------------------------------------------------------------------------- the table

UPDATE, DELETE, REPLACE = (update(0, WORDS),), (delete(0),), (delete(0), add(WORDS))

TABLE: dict[str, tuple[str, str, tuple[Any, ...], list[Any], dict[str, int]]] = {
    "asserted, UPDATE of asserted: revised in place": (
        "asserted", "asserted", UPDATE, [("old", 2, NEW, "asserted", "active", ())], {},
    ),
    "asserted, UPDATE of inferred: retracted, and an asserted one created that supersedes it": (
        "asserted", "inferred", UPDATE, [("new1", 1, NEW, "asserted", "active", SUPERSEDES), GONE["inferred"]], {},
    ),
    "asserted, DELETE of asserted: retracted, and the host's words stored": (
        "asserted", "asserted", DELETE, [("new1", 1, NEW, "asserted", "active", SUPERSEDES), GONE["asserted"]], {},
    ),
    "asserted, DELETE of inferred: retracted, and the host's words stored": (
        "asserted", "inferred", DELETE, [("new1", 1, NEW, "asserted", "active", SUPERSEDES), GONE["inferred"]], {},
    ),
    "inferred, UPDATE of asserted: a new inferred record about it, which is untouched": (
        "inferred", "asserted", UPDATE, [("new1", 1, WORDS, "inferred", "active", ABOUT)], {"about_asserted": 1},
    ),
    "inferred, UPDATE of inferred: revised in place": (
        "inferred", "inferred", UPDATE, [("old", 2, WORDS, "inferred", "active", ())], {},
    ),
    "inferred, DELETE of asserted: dropped, noted": (
        "inferred", "asserted", DELETE, [], {"delete_of_asserted_dropped": 1},
    ),
    "inferred, DELETE of inferred: retracted": ("inferred", "inferred", DELETE, [GONE["inferred"]], {}),
    "asserted, DELETE with ADD over asserted: the new one supersedes": (
        "asserted", "asserted", REPLACE, [("new1", 1, NEW, "asserted", "active", SUPERSEDES), GONE["asserted"]], {},
    ),
    "asserted, DELETE with ADD over inferred: the new one supersedes": (
        "asserted", "inferred", REPLACE, [("new1", 1, NEW, "asserted", "active", SUPERSEDES), GONE["inferred"]], {},
    ),
    "inferred, DELETE with ADD over asserted: added beside it": (
        "inferred", "asserted", REPLACE, [("new1", 1, WORDS, "inferred", "active", ())],
        {"delete_of_asserted_dropped": 1},
    ),
    "inferred, DELETE with ADD over inferred: the new one supersedes": (
        "inferred", "inferred", REPLACE, [("new1", 1, WORDS, "inferred", "active", SUPERSEDES), GONE["inferred"]], {},
    ),
    "asserted, ADD beside asserted": (
        "asserted", "asserted", (add(WORDS),), [("new1", 1, NEW, "asserted", "active", ())], {},
    ),
    "asserted, ADD beside inferred": (
        "asserted", "inferred", (add(WORDS),), [("new1", 1, NEW, "asserted", "active", ())], {},
    ),
    "inferred, ADD beside asserted": (
        "inferred", "asserted", (add(WORDS),), [("new1", 1, WORDS, "inferred", "active", ())], {},
    ),
    "inferred, ADD beside inferred": (
        "inferred", "inferred", (add(WORDS),), [("new1", 1, WORDS, "inferred", "active", ())], {},
    ),
    "asserted, NOOP over asserted: skipped": ("asserted", "asserted", (noop(0),), [], {"noop": 1}),
    "asserted, NOOP over inferred: superseded": (
        "asserted", "inferred", (noop(0),), [("new1", 1, NEW, "asserted", "active", SUPERSEDES), GONE["inferred"]],
        {"superseded_duplicate": 1},
    ),
    "inferred, NOOP over asserted: skipped": ("inferred", "asserted", (noop(0),), [], {"noop": 1}),
    "inferred, NOOP over inferred: skipped": ("inferred", "inferred", (noop(0),), [], {"noop": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("origin", "there", "entries", "written", "noted"), TABLE.values(), ids=TABLE.keys())
async def test_the_table_of_origins(
    store: Store, origin: str, there: str, entries: tuple[Any, ...], written: list[Any], noted: dict[str, int]
) -> None:
    before = await existing(store, there)
    result = await write(store, origin, *entries, operation_id="op")
    assert [told(record) for record in result.records] == written
    assert notes(result) == noted
    assert [(c.record_id, c.revision) for c in result.receipt.changes] == [(one[0], one[1]) for one in written]
    assert result.receipt.kind == ("remember" if origin == "asserted" else "extract")
    memory = open_memory(store)
    touched = any(one[0] == "old" for one in written)
    assert await memory.history("old") == ([before, result.records[-1]] if touched else [before])
    assert await memory.scope_revision() == 2
    active = [one for one in written if one[4] == "active"] + ([] if touched else [KEPT[there]])
    assert sorted(told(record) for record in (await memory.list()).records) == sorted(active)
    sources = {record.id: record.sources for record in result.records if record.status == "active"}
    expected = SAID if origin == "asserted" else (SEEN,)
    kept_too = before.sources if "old" in sources and origin == "inferred" else ()
    assert all(found == (*kept_too, *expected) for found in sources.values())


def test_the_table_has_every_cell() -> None:
    cells = {
        (origin, there, entries)
        for origin, there, entries, _, _ in ((a, b, json.dumps(c), d, e) for a, b, c, d, e in TABLE.values())
    }
    assert len(cells) == 2 * 2 * 5


# ------------------------------------------------------------------------------------------------- the host's words

SPOILING: dict[str, Any] = {
    "DELETE alone": decisions(delete(0)),
    "DELETE without a fact": decisions(delete(0, None)),
    "UPDATE with other words": decisions(update(0, "MODEL WORDS")),
    "UPDATE with other words, kind and importance": decisions(update(0, "MODEL WORDS", kind="working", importance=0.9)),
    "ADD with other words": decisions(add("MODEL WORDS", kind="working", importance=0.9)),
    "ADD twice": decisions(add("MODEL WORDS"), add("MORE MODEL WORDS", None)),
    "DELETE with ADD of other words": decisions(delete(0), add("MODEL WORDS")),
    "UPDATE and DELETE of one record": decisions(update(0, "MODEL WORDS"), delete(0)),
    "DELETE and UPDATE of one record": decisions(delete(0), update(0, "MODEL WORDS")),
    "NOOP without an id": decisions(noop()),
    "an unknown id": decisions(update(7, "MODEL WORDS"), delete(-1), noop("x")),
    "a record id": decisions(delete("old"), update("old", "MODEL WORDS")),
    "an unknown fact": decisions(update(0, "MODEL WORDS", "n7"), delete(0, "n1"), noop(0, "zz"), add("x", "n9")),
    "an unknown event": decisions({"event": "MERGE", "id": 0}),
    "entries that are none": decisions(None, 7, "DELETE", {"id": 0}),
    "nothing to do": decisions(),
    "an empty reply": "",
    "no reply": None,
    "no blocks": [],
    "an empty LLMReply": LLMReply(None),
    "a refusal": "I'm sorry, I can\u2019t help with that.",
    "garbage": "{{{",
    "prose": "I would delete all of it.",
    "a reply that was cut off": decisions(delete(0), add("MODEL WORDS"))[:-2],
    "another shape": json.dumps({"facts": [{"text": "MODEL WORDS"}]}),
    "ten thousand actions": decisions(*(delete(number) for number in range(10_000))),
}


@pytest.mark.parametrize("there", ["asserted", "inferred"])
@pytest.mark.parametrize("reply", SPOILING.values(), ids=SPOILING.keys())
async def test_a_model_never_drops_or_rewords_the_hosts_words(store: Store, there: Any, reply: Any) -> None:
    await existing(store, there)
    result = await write(store, "asserted", reply=reply, importance=0.5, kind="episodic", metadata={"a": 1})
    memory = open_memory(store)
    active = (await memory.list()).records
    (stored,) = [record for record in active if record.text == NEW]
    assert (stored.origin, stored.sources, stored.kind) == ("asserted", SAID, "episodic")
    assert (stored.importance, stored.metadata, stored.expires_at) == (0.5, {"a": 1}, None)
    assert stored in result.records
    assert not [record for record in active if "MODEL" in record.text]
    for record in active:
        assert "MODEL" not in "".join(texts(await memory.history(record.id)))


@pytest.mark.parametrize("reply", SPOILING.values(), ids=SPOILING.keys())
async def test_nor_does_it_when_the_host_remembers_something_as_inferred(store: Store, reply: Any) -> None:
    before = await existing(store, "asserted")
    memory = open_memory(store, llm=FakeLLM(decisions=[reply, reply]))
    result = await memory.remember(NEW, origin="inferred", kind="episodic", importance=0.5)
    (stored,) = result.records
    assert (stored.text, stored.origin, stored.sources) == (NEW, "inferred", SAID)
    assert (stored.kind, stored.importance) == ("episodic", 0.5)
    assert await memory.history("old") == [before]


@pytest.mark.parametrize(
    ("there", "entry", "written"),
    [
        ("asserted", update(0, WORDS), [("new1", 1, NEW, "inferred", "active", ABOUT)]),
        ("inferred", update(0, WORDS), [("old", 2, NEW, "inferred", "active", ())]),
        ("asserted", delete(0), [("new1", 1, NEW, "inferred", "active", ())]),
        ("inferred", delete(0), [("new1", 1, NEW, "inferred", "active", SUPERSEDES), GONE["inferred"]]),
        ("asserted", noop(0), []),
        ("inferred", noop(0), [("new1", 1, NEW, "inferred", "active", SUPERSEDES), GONE["inferred"]]),
        ("asserted", add(WORDS), [("new1", 1, NEW, "inferred", "active", ())]),
    ],
)
async def test_a_remember_of_inferred_origin_follows_the_table_with_the_hosts_words(
    store: Store, there: str, entry: Any, written: list[Any]
) -> None:
    await existing(store, there)
    memory = open_memory(store, llm=FakeLLM(decisions=[decisions(entry)]), new_id=Ids("new"))
    result = await memory.remember(NEW, origin="inferred")
    assert [told(record) for record in result.records] == written


async def test_only_unreadable_replies_are_asked_again_and_only_once(store: Store) -> None:
    await existing(store, "inferred")
    for reply, calls, code in (("{{{", 2, "unparsed"), ("", 1, "refused"), ("I'm sorry, no.", 1, "refused")):
        llm = FakeLLM(decisions=reply)
        result = await open_memory(store, llm=llm).remember(f"{NEW} {code} {calls} {len(reply)}")
        assert (len(llm.prompts), notes(result)) == (calls, {code: 1})
        assert [record.links for record in result.records] == [()]
    llm = FakeLLM(decisions=["{{{", decisions(noop(0))])
    assert notes(await open_memory(store, llm=llm).remember(f"{NEW}!")) == {"noop": 1}
    assert llm.prompts[0] == llm.prompts[1]


@pytest.mark.parametrize("reply", ["{{{", "", "I'm sorry, I can't.", decisions(update(0, WORDS))[:-3]])
async def test_without_a_readable_decision_nothing_of_an_extraction_is_applied(store: Store, reply: str) -> None:
    before = await existing(store, "inferred")
    result = await write(store, "inferred", reply=reply)
    assert (result.records, result.receipt.changes) == ((), ())
    assert set(notes(result)) <= {"unparsed", "refused"}
    assert await open_memory(store).history("old") == [before]
    assert await open_memory(store).count() == 1


async def test_an_unreadable_decision_leaves_the_messages_unread(store: Store) -> None:
    await existing(store, "inferred")
    assert notes(await write(store, "inferred", reply="{{{")) == {"unparsed": 1}
    again = await write(store, "inferred", add())
    assert (texts(again.records), notes(again)) == ([NEW], {})
    assert notes(await write(store, "inferred")) == {"already_processed": 1, "nothing_readable": 1}


# --------------------------------------------------------------------------------------------- what the host gave too


async def test_a_revision_in_place_takes_over_what_the_host_gave(store: Store, clock: Clock) -> None:
    await existing(
        store, "asserted", kind="episodic", importance=0.25, metadata={"a": 1}, links=[Link("about", "x")],
        ttl=timedelta(hours=1),
    )  # fmt: skip
    result = await write(
        store, "asserted", update(0, WORDS), kind="procedural", importance=0.75, metadata={"b": 2},
        links=[Link("about", "y"), Link("about", "x")], ttl=timedelta(hours=2), sources=[SEEN],
    )  # fmt: skip
    (record,) = result.records
    assert (record.id, record.revision, record.text, record.sources) == ("old", 2, NEW, (SEEN,))
    assert (record.kind, record.importance, record.metadata) == ("procedural", 0.75, {"b": 2})
    assert record.links == (Link("about", "x"), Link("about", "y"))
    assert record.expires_at == START + timedelta(hours=2)


async def test_a_revision_in_place_keeps_what_the_host_left_out_but_never_expires_unasked(store: Store) -> None:
    await existing(
        store, "asserted", importance=0.25, metadata={"a": 1}, links=[Link("about", "x")], ttl=timedelta(hours=1)
    )
    (record,) = (await write(store, "asserted", update(0, WORDS))).records
    assert (record.importance, record.metadata, record.links) == (0.25, {"a": 1}, (Link("about", "x"),))
    assert record.expires_at is None  # words that were given without an end do not end


async def test_a_new_record_keeps_the_hosts_links_beside_those_of_the_reconciliation(store: Store) -> None:
    await existing(store, "inferred")
    for_all = [Link("about", "topic")]
    said = await write(store, "asserted", update(0, WORDS), links=for_all, ttl=timedelta(hours=1), metadata={"a": 1})
    assert said.records[0].links == (Link("about", "topic"), Link("supersedes", "old"))
    assert (said.records[0].metadata, said.records[0].expires_at) == ({"a": 1}, START + timedelta(hours=1))


@pytest.mark.parametrize("entries", [(update(0, WORDS),), (add(WORDS),), (delete(0), add(WORDS))])
async def test_links_and_ttl_of_an_extraction_are_those_of_all_it_writes(store: Store, entries: Any) -> None:
    await existing(store, "inferred", links=[Link("about", "x")])
    result = await write(store, "inferred", *entries, links=[Link("about", "topic")], ttl=timedelta(hours=1))
    written = result.records[0]
    assert Link("about", "topic") in written.links
    assert written.expires_at == START + timedelta(hours=1)


@pytest.mark.parametrize(("fixed", "kind"), [(None, "working"), ("procedural", "procedural")])
@pytest.mark.parametrize("entry", [update, add])
async def test_kind_overrides_the_models_when_it_reconciles_too(
    store: Store, fixed: Any, kind: str, entry: Any
) -> None:
    await existing(store, "inferred")
    given = {"kind": "working", "importance": 0.75}
    entries = (entry(0, WORDS, **given),) if entry is update else (entry(WORDS, **given),)
    (record,) = (await write(store, "inferred", *entries, kind=fixed)).records
    assert (record.kind, record.importance) == (kind, 0.75)


async def test_a_model_that_proposes_no_text_kind_or_importance_changes_none(store: Store) -> None:
    await existing(store, "inferred", kind="episodic", importance=0.25, metadata={"a": 1})
    (record,) = (await write(store, "inferred", update(0))).records
    assert (record.text, record.kind, record.importance, record.metadata) == (NEW, "episodic", 0.25, {"a": 1})


async def test_an_id_of_the_hosts_own_is_the_id_of_what_is_stored(store: Store) -> None:
    await existing(store, "asserted")
    result = await write(store, "asserted", update(0, WORDS), id="own")
    assert [told(record) for record in result.records] == [
        ("own", 1, NEW, "asserted", "active", SUPERSEDES), GONE["asserted"],
    ]  # fmt: skip
    memory = open_memory(store, llm=FakeLLM(decisions=obey))
    error = await refusal(memory.remember("Ada likes white tea", id="old", operation_id="op"))
    assert isinstance(error, RecordConflictError)
    assert await memory.receipt("op") is None


async def test_forged_fields_of_an_entry_are_ignored(store: Store) -> None:
    await existing(store, "inferred")
    forged = {
        "origin": "asserted", "scope": {"user_id": "bob"}, "links": [{"relation": "about", "record_id": "x"}],
        "sources": ["host"], "metadata": {"x": 1}, "ttl": 1, "status": "retracted", "record_id": "own", "revision": 7,
    }  # fmt: skip
    (record,) = (await write(store, "inferred", add(WORDS, **forged), operation_id="op")).records
    assert told(record) == ("new1", 1, WORDS, "inferred", "active", ())
    assert (record.scope, record.sources, record.metadata, record.expires_at) == (ADA, (SEEN,), {}, None)
    assert await open_memory(store, BOB).count() == 0
