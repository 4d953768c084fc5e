"""How values show themselves in a notebook: readable without colour, script or a particular page around them."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from fakes import Clock, FakeEmbedder
from pages import Element, contrast, shown

from vmem_core import (
    Change,
    Draft,
    Finding,
    ForgetResult,
    ForgetScopeResult,
    Generation,
    Hit,
    ImportResult,
    InMemoryStore,
    Link,
    MemorySession,
    Note,
    Page,
    Receipt,
    Record,
    ReembedResult,
    Scope,
    Source,
    WriteResult,
    text_digest,
)
from vmem_core.display.results import NOTES
from vmem_core.display.style import DARK, LIGHT, SHEET
from vmem_core.results import NOTE_CODES, Findings


@pytest.fixture
def memory() -> Any:
    return MemorySession(InMemoryStore(clock=Clock()), Scope(user_id="ada"), embedder=FakeEmbedder()).sync


def rows(page: Element) -> list[list[str]]:
    """The cells of a table, row by row."""
    return [[cell.text for cell in row.inside if isinstance(cell, Element)] for row in page.all("tr")][1:]


def facts(page: Element) -> dict[str, str]:
    return {term.text: value.text for term, value in zip(page.all("dt"), page.all("dd"), strict=True)}


def badges(page: Element) -> list[str]:
    return [one.text for one in page.all("span") if "v-badge" in (one.attributes.get("class") or "")]


# --- records ----------------------------------------------------------------------------------------------------


def test_a_record_shows_its_text_and_all_that_is_known_about_it(memory: Any) -> None:
    source = Source("user", text_digest("x"), message_id="m7")
    made = memory.remember(
        "Ada likes tea.", id="r1", origin="inferred", kind="episodic", sources=[source], importance=0.25,
        metadata={"topic": "drinks"}, links=[Link("about", "r0")], ttl=timedelta(days=1),
    ).records[0]  # fmt: skip
    page = shown(made)
    assert page.all("div", dir="auto")[0].text == "Ada likes tea."
    until = f"until {made.expires_at:%Y-%m-%d %H:%M:%S}"
    assert badges(page) == ["revision 1", "inferred", "episodic", until, "user m7"]
    told = facts(page)
    assert (told["id"], told["scope"], told["link"]) == ("r1", "user_id ada", "about r0")
    assert told["recorded"] == f"{made.recorded_at:%Y-%m-%d %H:%M:%S} UTC, at scope revision 1"
    assert (told["importance"], json.loads(told["metadata"])) == ("0.25", {"topic": "drinks"})
    assert page.all("time")[1].attributes["datetime"] == made.to_json()["recorded_at"]


def test_a_record_of_many_sources_shows_some_and_counts_the_rest(memory: Any) -> None:
    digest = text_digest("x")
    sources = [Source("assistant", digest, tool_name=f"tool{n}") for n in range(4)] + [Source("host", digest)]
    page = shown(memory.remember("Tea.", sources=sources).records[0])
    assert badges(page)[2:] == ["assistant tool0", "assistant tool1", "assistant tool2"]
    assert "and 2 more" in page.text


def test_hits_show_their_place_in_either_list(memory: Any) -> None:
    memory.remember("Tea.", id="r1")
    page = shown(memory.recall("tea"))
    head = [one.text for one in page.all("th", scope="col")]
    assert head == ["text and id", "found by", "score", "revision", "origin", "sources", "recorded (UTC)"]
    (row,) = rows(page)
    hit = memory.recall("tea")[0]
    assert (row[0], row[1], row[2]) == ("Tea.r1", "meaning #1words #1", f"{hit.score:.4f}")
    assert page.all("caption")[0].text == "1 hit, best first"
    assert [cell.text for cell in page.all("th", scope="row")] == ["Tea.r1"]


def test_what_is_only_recent_shows_no_score(memory: Any) -> None:
    memory.remember("Tea.", id="r1")
    page = shown(memory.recall())
    assert "score" not in page.text
    assert page.all("caption")[0].text == "1 hit, changed last first"


def test_a_page_says_whether_there_is_more(memory: Any) -> None:
    memory.remember_many([Draft(f"Tea {n}") for n in range(3)])
    assert shown(memory.list(limit=2)).all("caption")[0].text == "2 records, newest first; more with cursor="
    assert shown(memory.list()).all("caption")[0].text == "3 records, newest first"


def test_beyond_a_hundred_rows_are_counted(memory: Any) -> None:
    result = memory.remember_many([Draft(f"Tea {n}", id=f"r{n}") for n in range(1_205)])
    page = shown(result)
    assert len(page.all("tr")) == 101
    assert len(page.all("li")) == 100
    assert "and 1,105 more" in page.text
    assert "and 1,105 more changes" in page.text


def test_nothing_found_says_so(memory: Any) -> None:
    for nothing in (memory.recall("tea"), memory.list(), memory.history("r1")):
        assert shown(nothing).text == "nothing found"


def test_a_long_text_says_how_long_it_is_and_an_id_is_never_cut(memory: Any) -> None:
    memory.remember("word " * 100, id="i" * 500)
    (row,) = rows(shown(memory.list()))
    assert row[0] == ("word " * 48).rstrip() + " … 500 characters in all" + "i" * 500
    record = memory.get("i" * 500)
    assert shown(record).all("div", dir="auto")[0].text == "word " * 100
    assert repr(record).startswith(f"Record({('word ' * 48)!r}… 500 characters in all, id='iii")


# --- history ----------------------------------------------------------------------------------------------------


def test_a_history_is_a_line_in_time_with_what_each_revision_changed(memory: Any) -> None:
    source = Source("user", text_digest("x"), message_id="m7")
    memory.remember("Ada lives in Lisbon, near the river.", id="home", origin="inferred", sources=[source])
    memory.revise("home", text="Ada lives in Porto, near the river.")
    memory.retract("home")
    memory.revise("home", kind="episodic")
    page = shown(memory.history("home"))
    assert page.text.startswith("4 revisions of home, oldest first")
    first, second, third, fourth = page.all("li")
    assert badges(first) == ["revision 1", "inferred", "user m7"]
    assert badges(second) == ["revision 2", "asserted", "changed: origin", "host"]
    assert [one.text for one in second.all("del") + second.all("ins")] == ["−Lisbon", "+Porto"]
    assert second.all("div", dir="auto")[0].text == "Ada lives in −Lisbon+Porto, near the river."
    assert badges(third)[1:3] == ["asserted", "retracted"]
    assert "the same text" in third.text
    assert badges(fourth) == ["revision 4", "active again", "asserted", "episodic", "host"]
    assert not first.all("ins")
    assert page.text.endswith("− taken out and + put in, compared with the revision before")


def test_a_history_tells_of_revisions_that_are_no_longer_kept(memory: Any) -> None:
    memory.remember("One.", id="r1")
    for text in ("Two.", "Three.", "Four."):
        memory.revise("r1", text=text)
    history = memory.history("r1")
    kept = type(history)([history[1], history[3]])
    first, second = shown(kept).all("li")
    assert first.text.startswith("1 revision before this no longer kept")
    assert second.text.startswith("1 revision before this no longer kept")


def test_a_history_of_many_revisions_shows_the_last_hundred(memory: Any) -> None:
    memory.remember("Count 1.", id="r1")
    history = memory.history("r1")
    one = history[0].to_json()
    many = [Record.from_json({**one, "revision": n, "text": f"Count {n}."}) for n in range(1, 131)]
    page = shown(type(history)(many))
    assert len(page.all("li")) == 100
    assert "30 earlier revisions not shown" in page.text
    assert page.all("li")[0].all("del")[0].text == "−30"


# --- receipts and other answers -----------------------------------------------------------------------------------


def test_a_receipt_shows_its_changes_and_holds_no_text(memory: Any) -> None:
    result = memory.remember_many([Draft(f"secret {n}", id=f"r{n}") for n in range(3)], operation_id="op<1>")
    page = shown(result.receipt)
    assert page.text.startswith("Receipt of remember_many, scope revision 1")
    assert facts(page)["operation"] == "op<1>"
    assert [one.text for one in page.all("li")] == [f"create r{n}, revision 1" for n in range(3)]
    assert "secret" not in page.text


def test_a_receipt_says_what_its_notes_mean(memory: Any) -> None:
    memory.remember("Tea.", id="r1")
    page = shown(memory.remember("Tea.", supersede="skip_equal"))
    captions = [one.text for one in page.all("caption")]
    assert captions == ["1 record met that stayed as it was", "Notes"]
    assert rows(page)[-1] == ["already_stored", "1", "an active record has this text already"]
    assert "no change" in page.text


def test_every_note_has_a_meaning() -> None:
    assert set(NOTES) == set(NOTE_CODES)


def test_a_write_says_when_it_is_a_replay(memory: Any) -> None:
    memory.remember("Tea.", operation_id="op1")
    page = shown(memory.remember("Tea.", operation_id="op1"))
    assert "replayed: committed before, nothing applied now" in badges(page)
    assert page.all("caption")[0].text == "1 record written"


def test_a_forget_says_what_went_and_what_became_of_copies(memory: Any) -> None:
    memory.remember("secret", id="r1")
    memory.revise("r1", text="secret too")
    told = facts(shown(memory.forget("r1")))
    assert told["revisions deleted"] == "1, 2"
    assert told["copies elsewhere"] == "none: no listener is configured"
    assert facts(shown(memory.forget("r1")))["revisions deleted"] == "it was forgotten before"
    assert facts(shown(memory.forget("never-had")))["revisions deleted"] == "nothing to delete"
    memory.remember("secret", id="r2")
    assert facts(shown(memory.forget_scope()))["records forgotten"] == "1"


def test_a_redacted_receipt_says_so(memory: Any) -> None:
    memory.remember("secret", id="r1", operation_id="op1")
    memory.forget("r1")
    assert "redacted" in badges(shown(memory.receipt("op1")))


def test_a_context_shows_its_references_and_what_was_left_out(memory: Any) -> None:
    memory.remember_many([Draft("Ada likes green tea.", id="r1"), Draft("Ada likes tea. " * 40, id="r2")])
    page = shown(memory.compile_context("tea", max_tokens=80))
    assert rows(page) == [["r1", "1", "asserted", "host"]]
    assert "1 left out of the budget; made at scope revision 1; holds references, no text" in page.text
    assert "green" not in page.text
    assert "nothing found" in shown(memory.compile_context("elephants", max_tokens=1)).text


def test_imports_and_reembeddings_say_what_was_left_and_why() -> None:
    page = shown(ImportResult(1_012, 1_009, 3, {"already_imported": 2, "blank": 1}))
    assert "1,012 records read: 1,009 new, 3 skipped" in page.text
    assert rows(page) == [["already_imported", "2"], ["blank", "1"]]
    page = shown(ReembedResult(2, 120, 3, False, {"revised": 2, "failed": 1}, ("r9",)))
    assert "Generation 2: 120 vectors stored; not complete: call again to go on" in page.text
    assert [row[:2] for row in rows(page)] == [["revised", "2"], ["failed", "1"]]
    assert facts(page)["failed"] == "r9"
    assert "the store searches with it" in shown(ReembedResult(2, 1, 0, True)).text


def test_a_sound_store_says_so_and_findings_name_the_place(memory: Any) -> None:
    store = InMemoryStore()
    assert store.sync.diagnose() == []
    assert shown(store.sync.diagnose()).text == "sound nothing found: all that the store keeps agrees"
    found = Finding("receipt_missing", Scope(user_id="ada"), None, "op-7", "receipt 4 is missing")
    expected = ["receipt_missing", "receipt 4 is missing", "user_id ada", "operation op-7"]
    assert rows(shown(Findings([found]))) == [expected]
    assert rows(shown(found)) == [expected]


def test_every_other_value_shows_its_fields() -> None:
    page = shown(Generation(1, "wordllama", 256, "active"))
    assert page.text.startswith("Generation")
    assert facts(page) == {"number": "1", "model id": "wordllama", "dims": "256", "state": "active"}
    draft = facts(shown(Draft("Tea.", links=(Link("about", "r1"),), metadata={"a": {"b": [1, True]}})))
    assert draft["links"] == "relation about, record_id r1"
    assert draft["metadata"] == "a b 1; yes"
    assert facts(shown(Note("noop", 2))) == {"code": "noop", "count": "2"}
    assert facts(shown(Change("r1", 1, "create")))["action"] == "create"


def test_no_value_of_the_library_is_without_a_display() -> None:
    for cls in (ForgetResult, ForgetScopeResult, Hit, Page, Receipt, Record, Scope, Source, WriteResult):
        assert callable(cls._repr_html_)


# --- the style sheet ------------------------------------------------------------------------------------------------


def test_contrast_is_measured_as_the_accessibility_guidelines_do() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_can_be_read_in_light_and_dark(theme: dict[str, str]) -> None:
    pairs = [(name, f"{name}-paper") for name in theme if f"{name}-paper" in theme]
    assert len(pairs) == 5
    for ink, paper in [("ink", "paper"), ("quiet", "paper"), *pairs]:
        assert contrast(theme[ink], theme[paper]) >= 4.5, ink


def test_both_themes_name_the_same_colours_and_the_rules_use_no_others() -> None:
    assert set(LIGHT) == set(DARK)
    used = set(re.findall(r"var\(--v-([a-z-]+)\)", SHEET))
    assert used == set(LIGHT)
    rules = SHEET[SHEET.index(".vmem{color:") :]
    assert not re.findall(r"#[0-9a-f]{3,6}\b", rules)


def test_the_style_sheet_follows_the_theme_and_touches_nothing_else() -> None:
    assert "@media (prefers-color-scheme:dark)" in SHEET
    assert '[data-jp-theme-light="false"] .vmem' in SHEET
    assert "var(--jp-content-font-color1,var(--v-ink))" in SHEET
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", re.sub(r"@media[^{]*\{", "", SHEET))
    selectors = [one.strip() for rule in rules for one in rule.split(",")]
    assert len(selectors) > 30
    assert not [one for one in selectors if not re.search(r"(^|\s)\.vmem(\.vmem)?($|\s)", one)]
    assert not re.search(r"url\(|@import|expression", SHEET)
