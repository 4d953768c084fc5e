"""How a model's reply is read: in every wrapping and shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vmem_core.records import KINDS
from vmem_core.replies import EVENTS, MOST_ENTRIES, Decision, FactEntry, Reply, read_decisions, read_facts

FACTS = [{"text": "Ada likes tea", "sources": ["s0"]}, {"text": 'She said "no" }]{[ \\ \'', "sources": ["s1", "s2"]}]
MEMORY = [{"event": "ADD", "fact": "n0", "text": "a"}, {"event": "UPDATE", "id": 0, "fact": "n1", "text": "b"}]
BODIES = [(read_facts, {"facts": FACTS}), (read_decisions, {"memory": MEMORY})]
READERS = pytest.mark.parametrize(("read", "body"), BODIES, ids=["facts", "decisions"])


def expected(read: Any, body: Any) -> Reply[Any]:
    """What the plain reply says."""
    return read(json.dumps(body))


def test_plain_replies_say_what_they_say() -> None:
    read = read_facts(json.dumps({"facts": FACTS}))
    assert read == Reply(
        "read", (FactEntry("Ada likes tea", ("s0",)), FactEntry('She said "no" }]{[ \\ \'', ("s1", "s2")))
    )
    decided = read_decisions(json.dumps({"memory": MEMORY}))
    assert decided == Reply("read", (Decision("ADD", None, "n0", "a"), Decision("UPDATE", 0, "n1", "b")))


# ----------------------------------------------------------------------------------------------------------- wrappings

WRAPPINGS = {
    "nothing": "%s",
    "white space": " \r\n\t%s\r\n ",
    "byte order mark": "\ufeff%s",
    "fence": "```json\n%s\n```",
    "fence without language": "```\n%s\n```",
    "fence in capitals": "```JSON\r\n%s\r\n```",
    "fence of tildes": "~~~json\n%s\n~~~",
    "fence on one line": "```json %s ```",
    "prose before": "Here is what I found:\n%s",
    "prose after": "%s\nI hope this helps!",
    "prose with braces before": "As {asked} and [told]: %s",
    "prose with braces after": "%s\nHope {this} helps. See [1].",
    "prose with an empty list after": "%s\n\nNothing else: []",
    "prose with a check box after": "%s\n- [ ] verify\n- [x] done",
    "prose with quotes": 'The user said "hello". %s The "end".',
    "prose with apostrophes": "I've read the users' words, it's all here: %s That's it, 'tis done.",
    "fence and prose": "Here it is:\n```json\n%s\n```\nHope {this} helps",
    "thought before": "<think>maybe</think>%s",
    "thought after": "%s<think>was that right?</think>",
    "thoughts around": "<think>a</think>%s<think>b</think>",
    "thought with an object": '<think>maybe {"facts": [], "memory": []}</think>%s',
    "thought with a broken object": '<think>so {"facts": [ and "half</think>%s',
    "thought with an object after": '%s<think>or {"facts": [], "memory": []}</think>',
    "thought over lines in capitals": "<THINK>\nhm\n</THINK>\n\n```json\n%s\n```",
    "thinking": "<thinking>hm [</thinking>%s",
    "reasoning": "<reasoning>hm {</reasoning>%s",
    "two thoughts": "<think>a {</think><think>b [</think>%s",
    "a thought in a thought": "<think>a <think>b</think> c {}</think>%s",
    "thought whose start is missing": 'so {"facts": [], "memory": []} then</think>%s',
    "thought that never ends": "<think>let me see\n%s",
    "thought that never ends, with an object": '<think>maybe {"actions": []}\n```json\n%s\n```\n',
    "another object before": '{"thoughts": "none"}\n%s',
    "an earlier answer": '{"facts": [], "memory": []}\n\nOn reflection:\n%s',
    "another object after": '%s\n{"confidence": 0.9}',
    "a list of numbers after": "%s [1, 2]",
    "one bracket too many": "%s}",
    "Windows line ends": "```json\r\n%s\r\n```\r\nDone.\r\n",
}


@READERS
@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS.keys())
@pytest.mark.parametrize("indent", [None, 2])
def test_a_reply_is_read_in_every_wrapping(read: Any, body: Any, wrapping: str, indent: int | None) -> None:
    assert read(wrapping % json.dumps(body, indent=indent)) == expected(read, body)


@READERS
@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_a_reply_that_is_cut_anywhere_applies_nothing_or_is_complete(read: Any, body: Any, wrapping: str) -> None:
    whole = expected(read, body)
    text = wrapping % json.dumps(body)
    start = text.index(json.dumps(body))
    # Before the object lies at most another one, that is complete as it stands: only what is cut inside it counts.
    for end in range(start, len(text)):
        read_so_far = read(text[:end])
        assert read_so_far.outcome in ("unparsed", "refused") or read_so_far == whole or not read_so_far.entries


@READERS
def test_no_part_of_a_list_is_ever_read(read: Any, body: Any) -> None:
    (entries,) = body.values()
    for text in (json.dumps(body), json.dumps(entries), repr(body), json.dumps(body, indent=1)):
        outcomes = [read(text[:end]).outcome for end in range(len(text))]
        assert set(outcomes) == {"refused", "unparsed"}  # refused: nothing there yet
        assert read(text).outcome == "read"


@READERS
def test_the_last_of_several_objects_counts(read: Any, body: Any) -> None:
    (key,) = body
    first = {key: [{"text": "draft", "event": "ADD"}]}
    assert read(f"{json.dumps(first)}\n{json.dumps(body)}") == expected(read, body)
    assert [entry.text for entry in read(f"{json.dumps(body)}\n{json.dumps(first)}").entries] == ["draft"]


@READERS
def test_what_is_complete_but_broken_is_mended(read: Any, body: Any) -> None:
    text = json.dumps(body)
    whole = expected(read, body)
    assert read(text.replace("]}]}", "],}],}").replace('"}]}', '",},]}')) == whole
    assert read(text[:-1] + ",}") == whole
    assert read(text.replace("{", "{ // a comment\n", 1)) == whole


def test_python_quotes_are_mended_and_their_brackets_do_not_count() -> None:
    text = "{'facts': [{'text': 'a }]} b', 'sources': ['s0']}, {'text': \"it's\", 'sources': ['s1']}]}"
    assert [entry.text for entry in read_facts(text).entries] == ["a }]} b", "it's"]
    assert {read_facts(text[:end]).outcome for end in range(len(text))} == {"refused", "unparsed"}


def test_brackets_of_unlike_kinds_that_close_each_other_are_no_end() -> None:
    text = '{"facts": [{"text": "He said "x ]} y" ok"}, {"text": "b"}]}'
    assert read_facts(text).outcome == "unparsed"


@READERS
def test_words_of_a_fence_or_a_thought_inside_a_text_are_text(read: Any, body: Any) -> None:
    (key,) = body
    for text in (
        "use ```json fences",
        "a <think> tag",
        "ends with </think>",
        "{[",
        "]}",
        "\\",
        '"',
        "'",
        "a\nb",
        "a\u2028b",
    ):
        reply = json.dumps({key: [{"event": "ADD", "text": text}]})
        assert [entry.text for entry in read(f"```json\n{reply}\n```").entries] == [text]


# -------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("reply", "texts"),
    [
        ({"facts": [{"text": "a"}]}, ["a"]),
        ([{"text": "a"}, {"text": "b"}], ["a", "b"]),
        ({"facts": {"text": "a"}}, ["a"]),
        ({"facts": {"0": {"text": "a"}, "1": {"text": "b"}}}, ["a", "b"]),
        ({"facts": ["a", {"text": "b"}]}, ["a", "b"]),
        ({"facts": [{"fact": "a"}]}, ["a"]),
        ({"facts": '[{"text": "a"}]'}, ["a"]),
        ({"facts": '{"text": "a"}'}, ["a"]),
        ({"facts": [], "note": "none"}, []),
        ({"facts": None}, []),
        ([], []),
        ({"facts": [{"text": "a"}], "memory": [{"text": "b"}]}, ["a"]),
    ],
)
def test_facts_are_read_in_every_shape(reply: Any, texts: list[str]) -> None:
    read = read_facts(json.dumps(reply))
    assert (read.outcome, [entry.text for entry in read.entries], read.invalid) == ("read", texts, 0)


@pytest.mark.parametrize(
    "item", [None, 7, True, [], ["a"], {}, {"text": None}, {"text": 7}, {"text": " "}, {"text": ["a"]}, "", "\u200b"]
)
def test_a_fact_without_a_text_is_invalid_and_the_others_count(item: Any) -> None:
    read = read_facts(json.dumps({"facts": [item, {"text": "a"}]}))
    assert ([entry.text for entry in read.entries], read.invalid) == (["a"], 1)


@pytest.mark.parametrize(
    ("sources", "tags"),
    [
        (["s0", "s1"], ("s0", "s1")),
        ("s0", ("s0",)),
        (None, ()),
        (7, ()),
        ([7, None, "s1", {}], ("s1",)),
        ({"s0": 1}, ()),
    ],
)
def test_sources_are_the_strings_of_the_list(sources: Any, tags: tuple[str, ...]) -> None:
    assert read_facts(json.dumps({"facts": [{"text": "a", "sources": sources}]})).entries[0].sources == tags


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        *((kind, kind) for kind in KINDS),
        (" Episodic ", "episodic"),
        ("fact", None),
        (None, None),
        (7, None),
        ("", None),
    ],
)
def test_a_kind_is_one_of_ours_or_none(given: Any, kind: str | None) -> None:
    assert read_facts(json.dumps({"facts": [{"text": "a", "kind": given}]})).entries[0].kind == kind
    assert read_decisions(json.dumps({"memory": [{"event": "ADD", "kind": given}]})).entries[0].kind == kind


@pytest.mark.parametrize(
    ("given", "importance"),
    [("0", 0.0), ("1", 1.0), ("0.5", 0.5), ("-0.1", None), ("1.1", None), ("NaN", None), ("Infinity", None),
     ("1e999", None), ("true", None), ('"0.5"', None), ("null", None), ("9" * 5000, None)],
    ids=range(12),
)  # fmt: skip
def test_an_importance_is_from_0_to_1_or_none(given: str, importance: float | None) -> None:
    assert read_facts(f'{{"facts": [{{"text": "a", "importance": {given}}}]}}').entries[0].importance == importance
    decided = read_decisions(f'{{"memory": [{{"event": "ADD", "importance": {given}}}]}}')
    assert decided.entries[0].importance == importance


@pytest.mark.parametrize("event", EVENTS)
def test_events_are_read_in_any_case(event: str) -> None:
    for written in (event, event.lower(), event.title(), f" {event} "):
        assert read_decisions(json.dumps({"memory": [{"event": written, "id": 0}]})).entries == (Decision(event, 0),)


@pytest.mark.parametrize(
    "item",
    [None, 7, "ADD", "ADD a", [], {}, {"text": "a"}, {"event": None}, {"event": "MERGE"}, {"event": ["ADD"]},
     {"event": 1}, {"event": "DELETE ALL"}, {"action": "ADD", "text": "a"}],
)  # fmt: skip
def test_an_entry_without_an_event_of_ours_is_invalid_and_the_others_count(item: Any) -> None:
    read = read_decisions(json.dumps({"memory": [item, {"event": "NOOP"}]}))
    assert (read.entries, read.invalid) == ((Decision("NOOP"),), 1)


@pytest.mark.parametrize(
    ("given", "handle"),
    [(0, 0), (3, 3), ("0", 0), ("12", 12), (None, None), (-1, -1), ("-1", -1), ("", -1), (" 1", -1), ("1.0", -1),
     (1.0, -1), (True, -1), ("n0", -1), ([0], -1), ({"id": 0}, -1), ("\u0663", -1), (10**30, 10**30), ("9" * 5000, -1),
     ("0190d5a0-7c1e-7000-8000-000000000001", -1)],
    ids=range(19),
)  # fmt: skip
def test_a_handle_is_an_integer_or_the_same_digits(given: Any, handle: int | None) -> None:
    assert read_decisions(json.dumps({"memory": [{"event": "DELETE", "id": given}]})).entries[0].id == handle


@pytest.mark.parametrize(
    ("reply", "count"),
    [
        ({"memory": {"event": "NOOP"}}, 1),
        ({"memory": {"a": {"event": "NOOP"}, "b": {"event": "NOOP"}}}, 2),
        ([{"event": "NOOP"}], 1),
        ({"memory": '[{"event": "NOOP"}]'}, 1),
        ({"memory": []}, 0),
        ([], 0),
    ],
)
def test_decisions_are_read_in_every_shape(reply: Any, count: int) -> None:
    read = read_decisions(json.dumps(reply))
    assert read == Reply("read", (Decision("NOOP"),) * count)


@READERS
def test_only_so_many_entries_are_read_and_the_others_counted(read: Any, body: Any) -> None:
    (key,) = body
    entries = [{"event": "DELETE", "id": number, "text": f"t{number}"} for number in range(10_000)]
    many = read(json.dumps({key: entries}))
    assert (len(many.entries), many.over, many.invalid) == (MOST_ENTRIES, 9_900, 0)
    assert [entry.text for entry in many.entries] == [f"t{number}" for number in range(100)]
    some = read(json.dumps({key: [7] * 60 + entries[:50]}))
    assert (len(some.entries), some.over, some.invalid) == (40, 10, 60)


def test_what_no_store_can_hold_is_mended() -> None:
    read = read_facts('{"facts": [{"text": "ok \\ud83d, \\u0000", "sources": ["s0"]}]}')
    assert read.entries[0].text == "ok \ufffd, \ufffd"
    pair = read_facts('{"facts": ["\\ud83d\\ude00"]}')
    assert pair.entries[0].text == "\U0001f600"


# -------------------------------------------------------------------------------------------- refused and unreadable


@READERS
@pytest.mark.parametrize(
    "reply",
    [None, "", " \n", "\u200b", [], {}, [{"type": "image"}], [{"type": "text", "text": ""}], [{"type": "text"}], 7,
     b"{}",
     "I'm sorry, I can't help with that.", "I\u2019m sorry, I can\u2019t help with that.", "Sorry, but no.",
     "I cannot assist with this request.", "We won't do that.", "As an AI, I have no memory.", "I am unable to comply.",
     "Unfortunately, I can't do this.", "I apologize, but this is not possible.", "I must decline.", "**I'm sorry**"],
)  # fmt: skip
def test_an_empty_reply_and_a_refusal_are_refused(read: Any, body: Any, reply: Any) -> None:
    assert read(reply) == Reply("refused")


@READERS
@pytest.mark.parametrize(
    "reply",
    ["Nothing to report", "null", "7", '""', "[", "{", "]", "{}", "[1, 2]", "{facts}", '{"facts": "none", "memory": 7}',
     '{"type": "object", "required": ["facts", "memory"], "properties": {"facts": {"type": "array"}, "memory": {}}}',
     '{"error": "refused"}', "<think>still thinking", '<think>hm {"facts": [', "```json\n```", '{"FACTS": []}',
     "{" * 3000, "[" * 100_000, '{"a":' * 100_000, "\\", '"', '{"facts": [}', '{"text": "a", "event": "ADD"}'],
    ids=range(24),
)  # fmt: skip
def test_what_has_not_the_asked_shape_is_unreadable(read: Any, body: Any, reply: str) -> None:
    assert read(reply) == Reply("unparsed")


@READERS
@pytest.mark.parametrize(
    "wrapping", ["<think>%s</think>", "%s</think>", "<think>%s</think>Nothing.", "a %s b</think> c"]
)
def test_what_was_only_thought_is_never_an_answer(read: Any, body: Any, wrapping: str) -> None:
    assert read(wrapping % json.dumps(body)) == Reply("unparsed")


@READERS
def test_what_a_careless_model_function_returns_is_read_too(read: Any, body: Any) -> None:
    text, whole = json.dumps(body), expected(read, body)
    (entries,) = body.values()
    assert read(body) == whole
    assert read(entries) == whole
    assert read([{"type": "text", "text": text}]) == whole
    assert read([{"type": "thinking", "thinking": "{"}, {"type": "text", "text": text}]) == whole
    for cut in range(len(text)):  # one text in two blocks
        assert read([{"type": "text", "text": text[:cut]}, {"type": "text", "text": text[cut:]}]) == whole
    assert read(["<think>{</think>", text]) == whole
