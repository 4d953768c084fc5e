"""Scopes, sources, links, drafts and records: a wrong one cannot be built, a right one survives JSON."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import pickle
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from fakes import START
from hypothesis import given
from hypothesis import strategies as st

from vmem_core import Draft, InvalidRequestError, Link, Record, Scope, Source, text_digest

DIGEST = text_digest("tea")
RECORD: dict[str, Any] = {
    "id": "r1", "revision": 1, "scope": Scope(user_id="ada"), "text": "tea", "kind": "semantic", "origin": "asserted",
    "status": "active", "sources": (Source("host", DIGEST),), "links": (), "importance": None, "metadata": {},
    "created_at": START, "recorded_at": START, "expires_at": None, "operation_id": "op", "scope_revision": 1,
}  # fmt: skip

# What the gate lets through: no NUL, no surrogate, and something to see.
STRINGS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
NAMES = STRINGS.map(lambda text: f"x{text}")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=12,
)
METADATA = st.dictionaries(STRINGS, JSON, max_size=4)
EARLIEST, LATEST = START.replace(year=1, month=1, day=3, tzinfo=None), START.replace(year=9999, month=12, tzinfo=None)
INSTANTS = st.datetimes(EARLIEST, LATEST, timezones=st.timezones())
SCOPES = st.dictionaries(
    st.sampled_from(["user_id", "agent_id", "run_id", "actor_id", "chat_id"]), NAMES, min_size=1
).map(lambda fields: Scope(**fields))
OPTIONAL_NAMES = st.none() | NAMES
SOURCES = st.builds(
    Source, st.sampled_from(["user", "assistant", "tool", "external", "host"]), STRINGS.map(text_digest),
    message_id=OPTIONAL_NAMES, chat_id=OPTIONAL_NAMES, run_id=OPTIONAL_NAMES, tool_call_id=OPTIONAL_NAMES,
    tool_name=OPTIONAL_NAMES, uri=OPTIONAL_NAMES,
)  # fmt: skip
LINKS = st.builds(Link, NAMES, NAMES)
KINDS = st.sampled_from(["semantic", "episodic", "working", "procedural"])
IMPORTANCES = st.none() | st.floats(0, 1) | st.sampled_from([0, 1])
DRAFTS = st.builds(
    Draft, NAMES, OPTIONAL_NAMES, KINDS, st.none() | st.lists(SOURCES, max_size=2), st.lists(LINKS, max_size=2),
    IMPORTANCES,
    METADATA, st.none() | st.timedeltas(timedelta(microseconds=1)),
)  # fmt: skip
RECORDS = st.builds(
    Record, NAMES, st.integers(1, 2**63), SCOPES, NAMES, KINDS, st.sampled_from(["asserted", "inferred"]),
    st.sampled_from(["active", "retracted"]), st.lists(SOURCES, min_size=1, max_size=3),
    st.lists(LINKS, max_size=3), IMPORTANCES,
    METADATA, INSTANTS, INSTANTS, st.none() | INSTANTS, NAMES, st.integers(1, 2**63),
)  # fmt: skip
VALUES = SCOPES | SOURCES | LINKS | DRAFTS | RECORDS


def exactly(value: Any) -> str:
    """A value with the type and the sign of each number, which equality does not look at."""
    return repr(dataclasses.asdict(value))


@given(VALUES)
def test_every_value_survives_json_exactly(value: Any) -> None:
    data = value.to_json()
    for again in (type(value).from_json(data), type(value).from_json(json.dumps(data))):
        assert again == value
        assert exactly(again) == exactly(value)
        assert type(again) is type(value)
    assert json.loads(json.dumps(data, ensure_ascii=False)) == data


@given(VALUES)
def test_every_value_can_be_copied_and_pickled(value: Any) -> None:
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


@given(RECORDS)
def test_instants_are_utc_whatever_they_came_in(record: Record) -> None:
    for instant in (record.created_at, record.recorded_at, record.expires_at):
        assert instant is None or instant.tzinfo is UTC


def test_values_are_frozen_and_slotted() -> None:
    for value in (Scope(user_id="ada"), Source("user", DIGEST), Link("about", "r"), Draft("tea"), Record(**RECORD)):
        name = dataclasses.fields(value)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, "other")
        assert not hasattr(value, "__dict__")


# ---------------------------------------------------------------------------------------------------------- scopes


def test_a_scope_needs_a_field() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Scope()
    assert caught.value.path == "scope"
    with pytest.raises(InvalidRequestError):
        Scope(user_id=None, chat_id=None)
    with pytest.raises(TypeError):
        Scope(userid="ada")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Scope("ada")  # type: ignore[call-arg, misc]


@pytest.mark.parametrize("value", ["", " ", "\u200b", 1, True, b"ada", ["ada"], "a\x00", "\ud800"], ids=range(9))
@pytest.mark.parametrize("name", ["user_id", "agent_id", "run_id", "actor_id", "chat_id"])
def test_a_wrong_field_of_a_scope_is_named(name: str, value: Any) -> None:
    fields = {"user_id": "ada", name: value}
    with pytest.raises(InvalidRequestError) as caught:
        Scope(**fields)
    assert caught.value.path == f"scope.{name}"


def test_scopes_are_the_same_only_by_the_same_code_points_in_the_same_fields() -> None:
    scopes = [
        Scope(user_id="a"), Scope(user_id="A"), Scope(user_id="a "), Scope(agent_id="a"),
        Scope(user_id="a", agent_id="a"),
        Scope(user_id="caf\u00e9"), Scope(user_id="cafe\u0301"), Scope(user_id='a","agent_id":"a'), Scope(user_id="a%"),
    ]  # fmt: skip
    assert len(set(scopes)) == len({scope.key for scope in scopes}) == len(scopes)
    assert Scope(chat_id="c", user_id="a") == Scope(user_id="a", chat_id="c")
    assert Scope(chat_id="c", user_id="a").key == Scope(user_id="a", chat_id="c").key


@given(SCOPES, SCOPES)
def test_the_key_of_a_scope_tells_scopes_apart(one: Scope, other: Scope) -> None:
    assert (one.key == other.key) == (one == other)


# ------------------------------------------------------------------------------------------------ sources and links

WRONG_SOURCES = [
    ({"kind": "model"}, "source.kind"), ({"kind": None}, "source.kind"), ({"kind": ""}, "source.kind"),
    ({"digest": "tea"}, "source.digest"), ({"digest": DIGEST[:-1]}, "source.digest"),
    ({"digest": DIGEST + "0"}, "source.digest"),
    ({"digest": DIGEST.upper()}, "source.digest"), ({"digest": DIGEST[7:]}, "source.digest"),
    ({"digest": None}, "source.digest"),
    ({"digest": "sha256:" + "g" * 64}, "source.digest"), ({"digest": "sha256:" + "\uff11" * 64}, "source.digest"),
    ({"message_id": ""}, "source.message_id"), ({"message_id": 5}, "source.message_id"),
    ({"chat_id": " "}, "source.chat_id"),
    ({"run_id": "\x00"}, "source.run_id"), ({"tool_call_id": "\ud800"}, "source.tool_call_id"),
    ({"tool_name": False}, "source.tool_name"), ({"uri": ""}, "source.uri"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "path"), WRONG_SOURCES, ids=range(len(WRONG_SOURCES)))
def test_a_wrong_source_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Source(**{"kind": "user", "digest": DIGEST, **fields})
    assert caught.value.path == path


@pytest.mark.parametrize(("relation", "record_id", "path"), [
    ("", "r", "link.relation"), (None, "r", "link.relation"), ("about", "", "link.record_id"),
    ("about", 5, "link.record_id"),
    ("a\x00", "r", "link.relation"), ("about", "\udfff", "link.record_id"),
], ids=range(6))  # fmt: skip
def test_a_wrong_link_is_named(relation: Any, record_id: Any, path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Link(relation, record_id)
    assert caught.value.path == path


def test_a_link_may_have_the_hosts_own_word() -> None:
    assert Link("contradicts \U0001f600", "r").relation == "contradicts \U0001f600"


# ------------------------------------------------------------------------------------------------ drafts and records

WRONG_BOTH: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "text"), ({"text": None}, "text"), ({"text": "a\x00"}, "text"), ({"id": ""}, "id"),
    ({"id": 5}, "id"),
    ({"kind": "fact"}, "kind"), ({"kind": 1}, "kind"), ({"sources": ["x"]}, "sources[0]"),
    ({"sources": (Source("user", DIGEST), None)}, "sources[1]"), ({"sources": "x"}, "sources"),
    ({"links": None}, "links"),
    ({"links": [Source("user", DIGEST)]}, "links[0]"), ({"importance": 2}, "importance"),
    ({"importance": float("nan")}, "importance"),
    ({"importance": False}, "importance"), ({"importance": "0.5"}, "importance"), ({"metadata": 5}, "metadata"),
    ({"metadata": {"a": object()}}, "metadata.a"), ({"metadata": {"a": {"b": [float("inf")]}}}, "metadata.a.b[0]"),
]  # fmt: skip
WRONG_RECORDS: list[tuple[dict[str, Any], str]] = [
    *WRONG_BOTH, ({"id": None}, "id"), ({"revision": 0}, "revision"), ({"revision": True}, "revision"),
    ({"revision": "1"}, "revision"),
    ({"scope": None}, "scope"), ({"scope": {"user_id": "ada"}}, "scope"), ({"origin": "host"}, "origin"),
    ({"status": "forgotten"}, "status"), ({"sources": ()}, "sources"), ({"sources": None}, "sources"),
    ({"created_at": START.replace(tzinfo=None)}, "created_at"),
    ({"recorded_at": START.replace(tzinfo=None)}, "recorded_at"),
    ({"expires_at": START.replace(tzinfo=None)}, "expires_at"), ({"recorded_at": None}, "recorded_at"),
    ({"recorded_at": START.isoformat()}, "recorded_at"), ({"created_at": START.date()}, "created_at"),
    ({"expires_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}, "expires_at"),
    ({"operation_id": ""}, "operation_id"), ({"scope_revision": 0}, "scope_revision"),
    ({"scope_revision": 1.0}, "scope_revision"),
]  # fmt: skip
WRONG_DRAFTS: list[tuple[dict[str, Any], str]] = [
    *WRONG_BOTH, ({"ttl": timedelta(0)}, "ttl"), ({"ttl": timedelta(days=-1)}, "ttl"), ({"ttl": 5}, "ttl"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "path"), WRONG_RECORDS, ids=range(len(WRONG_RECORDS)))
def test_a_wrong_record_cannot_be_built(fields: dict[str, Any], path: str) -> None:
    for build in (lambda: Record(**{**RECORD, **fields}), lambda: dataclasses.replace(Record(**RECORD), **fields)):
        with pytest.raises(InvalidRequestError) as caught:
            build()
        assert caught.value.path == path


@pytest.mark.parametrize(("fields", "path"), WRONG_DRAFTS, ids=range(len(WRONG_DRAFTS)))
def test_a_wrong_draft_cannot_be_built(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Draft(**{"text": "tea", **fields})
    assert caught.value.path == path


def test_metadata_of_drafts_and_records_is_copied_in() -> None:
    given_metadata = OrderedDict(b={"n": [1]}, a=OrderedDict(x=1))
    for value in (Draft("tea", metadata=given_metadata), Record(**{**RECORD, "metadata": given_metadata})):
        assert value.metadata == {"b": {"n": [1]}, "a": {"x": 1}}
        assert type(value.metadata) is dict
        assert type(value.metadata["a"]) is dict
        given_metadata["b"]["n"].append(2)
        assert value.metadata["b"] == {"n": [1]}
        given_metadata["b"]["n"].pop()


def test_metadata_goes_out_as_a_copy() -> None:
    record = Record(**{**RECORD, "metadata": {"a": [1]}})
    record.to_json()["metadata"]["a"].append(2)
    assert record.metadata == {"a": [1]}


def test_none_is_empty_metadata() -> None:
    assert Draft("tea", metadata=None).metadata == Record(**{**RECORD, "metadata": None}).metadata == {}  # type: ignore[arg-type]


def test_lists_become_tuples_and_empty_sources_of_a_draft_none() -> None:
    draft = Draft("tea", sources=[Source("user", DIGEST)], links=[Link("about", "r")])  # type: ignore[arg-type]
    assert type(draft.sources) is type(draft.links) is tuple
    assert Draft("tea", sources=()).sources is None
    assert type(Record(**{**RECORD, "sources": [Source("user", DIGEST)], "links": []}).links) is tuple


def test_numbers_of_other_types_become_plain_ones() -> None:
    class Whole(int):
        pass

    class Half(float):
        pass

    class Word(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "another word"

    draft = Draft("tea", importance=Half(0.5), metadata={Word("k"): [Whole(1), Half(0.5), Word("w")]})
    kept = draft.metadata["k"]
    assert [(type(value), value) for value in kept] == [(int, 1), (float, 0.5), (str, "w")]
    assert type(draft.importance) is float
    assert all(type(key) is str for key in draft.metadata)


def test_strings_of_other_types_become_plain_ones() -> None:
    class Name(enum.StrEnum):
        ADA = "ada"
        KIND = "working"
        ORIGIN = "inferred"
        SOURCE = "tool"

    source = Source(Name.SOURCE, DIGEST, message_id=Name.ADA)  # type: ignore[arg-type]
    link, scope = Link(Name.ADA, Name.ADA), Scope(user_id=Name.ADA, chat_id=Name.ADA)
    draft = Draft(Name.ADA, Name.ADA, Name.KIND)  # type: ignore[arg-type]
    fields = {"id": Name.ADA, "text": Name.ADA, "kind": Name.KIND, "origin": Name.ORIGIN, "operation_id": Name.ADA}
    record = Record(**{**RECORD, **fields})
    for holder in (source, link, scope, draft, record):
        strings = [value for value in dataclasses.asdict(holder).values() if isinstance(value, str)]
        assert {type(one) for one in strings} == {str}


# ------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize("data", ["", "null", "[]", "5", "{", "tea", "[" * 100_000, None, 5, [], b"{}"], ids=range(11))
def test_what_is_no_json_object_is_refused(data: Any) -> None:
    for cls in (Scope, Source, Link, Draft, Record):
        with pytest.raises(InvalidRequestError) as caught:
            cls.from_json(data)
        assert caught.value.path == cls.__name__


def test_unknown_and_missing_fields_are_refused() -> None:
    data = Record(**RECORD).to_json()
    with pytest.raises(InvalidRequestError) as caught:
        Record.from_json({**data, "SENTINEL-7f3a": 1})
    assert caught.value.path == "Record"
    assert "SENTINEL" not in str(caught.value)
    for name in data:
        with pytest.raises(InvalidRequestError) as caught:
            Record.from_json({key: value for key, value in data.items() if key != name})
        assert caught.value.path == f"Record.{name}"


WRONG_JSON: list[tuple[str, Any]] = [
    ("scope", "ada"), ("scope", {}), ("scope", {"user_id": 5}), ("sources", {}), ("sources", [5]), ("sources", []),
    ("links", "x"),
    ("links", [{"relation": "about"}]), ("created_at", "yesterday"), ("created_at", 5),
    ("created_at", "2026-03-01T10:00:00"),
    ("expires_at", ""), ("metadata", []), ("revision", "1"), ("text", None), ("importance", "NaN"), ("scope", None),
    ("sources", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), WRONG_JSON, ids=range(len(WRONG_JSON)))
def test_wrong_fields_in_json_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Record.from_json({**Record(**RECORD).to_json(), name: wrong})
    assert caught.value.path


def test_json_that_python_reads_too_freely_is_refused() -> None:
    text = json.dumps(Record(**RECORD).to_json())
    for wrong in ("NaN", "Infinity", "-Infinity", "1e999", '"\\ud83d"', '"\\u0000"', "9223372036854775808"):
        with pytest.raises(InvalidRequestError) as caught:
            Record.from_json(text.replace('"metadata": {}', f'"metadata": {{"a": {wrong}}}'))
        assert caught.value.path == "metadata.a"


@pytest.mark.parametrize("span", [2**80, -(2**80), 0, "5", 1.5, True], ids=range(6))
def test_a_wrong_ttl_in_json_is_refused(span: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Draft.from_json({"text": "tea", "ttl": span})
    assert caught.value.path == "ttl"


# -------------------------------------------------------------------------------------------------------- how it looks


def test_a_record_shows_its_text_escaped() -> None:
    record = Record(**{**RECORD, "text": "<script>alert('tea')</script>", "id": "<b>"})
    assert "<script>" not in record._repr_html_()
    assert "&lt;script&gt;" in record._repr_html_()
    assert "<b>" not in record._repr_html_()
    assert repr(record).startswith("Record(")


def test_records_can_be_members_of_a_set() -> None:
    record = Record(**RECORD)
    assert len({record, Record(**RECORD), dataclasses.replace(record, revision=2)}) == 2
