"""Whatever a reply may be, reading it never raises and never reads a part."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from test_replies import WRAPPINGS

from vmem_core.records import KINDS
from vmem_core.replies import EVENTS, MOST_ENTRIES, Reply, read_decisions, read_facts
from vmem_core.text import is_blank

# ---------------------------------------------------------------------------------------------------------- properties

PARTS = st.sampled_from(
    ["{", "}", "[", "]", '"', "'", ",", ":", "\\", "\n", "```", "```json", "<think>", "</think>", "facts", "memory",
     "event", "ADD", "DELETE", "text", "id", "0", "null", "true", " ", "\ud800", "\x00", "I'm sorry", '{"facts":',
     '{"memory":['],
)  # fmt: skip
SCRAPS = st.lists(PARTS | st.text(max_size=4), max_size=40).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["facts", "memory", "text", "event", "id", "fact", "kind"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "event": st.sampled_from([*EVENTS, "add", "MERGE"]) | VALUES,
        "id": st.integers(-2, 5) | VALUES,
        "fact": st.sampled_from(["n0", "n1", "n7"]) | VALUES,
        "text": st.text(max_size=12) | VALUES,
        "sources": st.lists(st.sampled_from(["s0", "s1", "s99"])) | VALUES,
        "kind": st.sampled_from(KINDS) | VALUES,
        "importance": st.floats() | VALUES,
    },
)


def check_read(reply: Any) -> None:
    for read in (read_facts, read_decisions):
        found: Reply[Any] = read(reply)
        assert found.outcome in ("read", "unparsed", "refused")
        assert len(found.entries) <= MOST_ENTRIES
        assert found.outcome == "read" or found == Reply(found.outcome)
        for entry in found.entries:
            assert entry.text is None or not is_blank(entry.text)
            assert "\x00" not in (entry.text or "")
            (entry.text or "").encode("utf-8")
            assert entry.kind in (None, *KINDS)
            assert entry.importance is None or 0 <= entry.importance <= 1


@given(SCRAPS)
@example("{" * 2000 + "}" * 2000)
@example('{"facts": ' + "[" * 2000 + "]" * 2000 + "}")
@example('{"facts": [' + '{"text": ' * 1500 + "1" + "}" * 1500 + "]}")
def test_no_text_makes_reading_raise(reply: str) -> None:
    check_read(reply)


@given(VALUES)
def test_no_value_makes_reading_raise(reply: Any) -> None:
    check_read(reply)
    check_read(json.dumps(reply))


@given(st.lists(ENTRIES, max_size=5), st.sampled_from(sorted(WRAPPINGS)), st.data())
def test_no_reply_that_is_cut_applies_a_part(entries: list[Any], name: str, data: st.DataObject) -> None:
    body = json.dumps({"facts": entries, "memory": entries})
    text = WRAPPINGS[name] % body
    start = text.index(body)
    cut = text[: data.draw(st.integers(start, len(text)), label="cut")]
    for read in (read_facts, read_decisions):
        part: Reply[Any] = read(cut)
        assert not part.entries or part == read(body)
