"""Texts of forgotten records: by what they are known, in what forms they are found, and that nothing else goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vmem_core import ForgottenTexts, InMemoryStore, InvalidRequestError, MemorySession, Scope, read_json

GONE = "[forgotten]"
TEXT = 'Ada said: "it\'s お茶"\n\\o/'
RECORD = {"id": "r1", "revision": 1, "text": "tea", "kind": "semantic", "origin": "inferred", "source_kinds": ["user"],
          "status": "active"}  # fmt: skip


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_text_is_found_among_other_words_also_as_json_inside_json(depth: int, ascii_only: bool) -> None:
    packed = TEXT
    for _ in range(depth):
        packed = json.dumps(packed, ensure_ascii=ascii_only)[1:-1]
    texts = ForgottenTexts([], [TEXT])
    assert texts.found_in_text(f"He wrote {packed}, and left.") == {""}
    assert texts.found_in_text(f"He wrote {packed}, and left.".encode()) == {""}
    assert texts.scrub_text(f"He wrote {packed}, and left.") == f"He wrote {GONE}, and left."


def test_a_text_is_found_as_python_shows_it_in_either_kind_of_quotes() -> None:
    texts = ForgottenTexts([], ["it's\ttea"])
    for shown in (repr({"text": "it's\ttea"}), repr({"text": "it's\ttea", "more": '"'}), repr('"it\'s\ttea"')):
        assert GONE in texts.scrub_text(f"Called with {shown}")
        assert "tea" not in texts.scrub_text(f"Called with {shown}")


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_json_stays_json_and_is_written_as_it_was(depth: int, style: dict[str, Any]) -> None:
    def packed(value: Any) -> Any:
        for _ in range(depth):
            value = json.dumps(value, **style)
        return value

    texts = ForgottenTexts(["r1"], [])
    value = {"found": packed([RECORD, {**RECORD, "id": "r2"}]), "other": "é"}
    clean = texts.scrub_json(value)
    assert clean == {"found": packed([{**RECORD, "text": GONE}, {**RECORD, "id": "r2"}]), "other": "é"}
    assert texts.scrub_json(clean) is clean


def test_json_that_is_deeper_than_anybodys_data_is_a_text_like_any_other() -> None:
    deep = "[" * 700 + '"black tea"' + "]" * 700
    assert ForgottenTexts([], ["black tea"]).scrub_text(deep) == deep.replace("black tea", GONE)


def test_a_short_text_goes_only_where_it_surely_is_the_record() -> None:
    texts = ForgottenTexts(["r1"], [])
    texts.learn_text("tea", "r1")
    assert texts.scrub_json([{"text": "tea"}, "a teapot", "tea"]) == [{"text": GONE}, "a teapot", "tea"]
    assert texts.found_in_text("a teapot") == frozenset()
    assert ForgottenTexts([], ["tea"]).scrub_text("a teapot") == f"a {GONE}pot"  # the host's own word is taken


def test_what_is_no_text_or_blank_or_gone_already_is_not_looked_for() -> None:
    texts = ForgottenTexts(["r1"], [])
    for odd in (None, 3, ["a long text"], "   ", GONE):
        texts.learn_text(odd, "r1")
    value = [f"3, a long text,     {GONE}"]
    assert texts.scrub_json(value) is value


def test_a_revision_names_its_record_and_any_other_call_only_what_it_wanted() -> None:
    texts = ForgottenTexts(["r1"], [])
    assert texts.learn_call({"text": "green tea"}) == "green tea"
    assert texts.learn_call({"id": "r2", "expected_revision": 1, "text": "black tea"}) == "black tea"
    assert texts.learn_call({"id": "r1", "expected_revision": 1, "text": "white tea"}) == "white tea"
    for odd in (None, "text", {}, {"text": 3}, {"id": "r1", "expected_revision": 1}):
        assert texts.learn_call(odd) is None
    assert texts.scrub_text("green tea, black tea, white tea") == f"green tea, black tea, {GONE}"


def test_an_answer_says_which_record_was_written() -> None:
    texts = ForgottenTexts(["r1"], [])
    assert texts.written_id({"id": "r1", "replayed": False}) == "r1"
    for other in ({"id": "r2", "replayed": False}, {"id": "r1"}, {"id": ["r1"], "replayed": True}, [], "r1", None):
        assert texts.written_id(other) is None


@pytest.mark.parametrize("text", ["tea", "a >>> b", ">>", "<<tea>>", "tea >", "a\nb", "]] <<", ">>>>>"])
async def test_a_record_that_a_context_shows_is_taken_out_whole(text: str) -> None:
    session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
    written = await session.remember(f"xyz {text}")
    package = await session.compile_context("xyz")
    shown = await session.render(package)
    texts = ForgottenTexts([written.records[0].id], [])
    texts.learn_shown(shown)
    clean = texts.scrub_text(f"Use it.\n{shown}\nNow answer.")
    heading, line = shown.split("\n")
    assert clean == f"Use it.\n{heading}\n{line[: line.index(' <<xyz')]} {GONE}\nNow answer."


@pytest.mark.parametrize("text", ["a >>> b", ">>>", ">>>>>>>", "<<<<", "a<<<b>>>c"])
async def test_no_text_closes_the_marks_that_fence_it(text: str) -> None:
    session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
    await session.remember(f"xyz {text}!")
    line = (await session.render(await session.compile_context("xyz"))).split("\n")[1]
    assert line.count("<<") == line.count(">>") == 1
    assert line.endswith("!>>")


@pytest.mark.parametrize(
    ("record_ids", "texts", "path"),
    [
        ("r1", [], "record_ids"),
        ([""], [], "record_ids"),
        ([], [3], "texts"),
        ([], " ", "texts"),
        (None, [], "record_ids"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(record_ids: Any, texts: Any, path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ForgottenTexts(record_ids, texts)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("text", "read"),
    [('{"a": 1}', {"a": 1}), (" [1]", [1]), ('"a"', "a"), ("7", None), ("null", None), ("", None), ("{", None),
     ("[" * 100_000, None)],
)  # fmt: skip
def test_json_that_stands_in_a_text_is_read_and_anything_else_is_none(text: str, read: Any) -> None:
    assert read_json(text) == read
