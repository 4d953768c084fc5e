"""How values show themselves in a notebook: readable, whole where it matters, and never mark-up of the page."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from fakes import Clock

from vmem_core import Draft, InMemoryStore, MemorySession, Scope, Source, text_digest


@pytest.fixture
def memory() -> Any:
    return MemorySession(InMemoryStore(clock=Clock()), Scope(user_id="ada")).sync


class Tags(HTMLParser):
    """The tags of a page, and its text cell by cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_a_text_is_never_markup(memory: Any) -> None:
    text = "<img src=x onerror=alert(1)> </td></table><script>alert(2)</script> &amp; \" '"
    memory.remember(text, id="<b>id</b>", sources=[Source("user", text_digest("x"), message_id="<i>m</i>")])
    for shown in (memory.recall("alert"), memory.recall(), memory.list(), memory.history("<b>id</b>")):
        page = Tags(shown._repr_html_())
        assert page.tags == {"table", "thead", "tbody", "tr", "th", "td", "code"}
        assert page.cells[0] == text
        assert page.cells[-1] == "<b>id</b>"


def test_a_long_text_is_cut_and_a_long_id_is_not(memory: Any) -> None:
    memory.remember("word " * 100, id="i" * 500)
    cells = Tags(memory.list()._repr_html_()).cells
    assert len(cells[0]) == 240
    assert cells[0].endswith("…")
    assert cells[-1] == "i" * 500


def test_a_text_between_dollars_is_no_formula(memory: Any) -> None:
    memory.remember("It costs $5 and $6.")
    assert memory.list()._repr_html_().startswith('<table class="tex2jax_ignore mathjax_ignore">')


def test_a_record_says_where_it_comes_from_and_what_is_out_of_the_ordinary(memory: Any) -> None:
    digest = text_digest("x")
    sources = [Source("assistant", digest, tool_name=f"tool{n}") for n in range(4)] + [Source("host", digest)]
    made = memory.remember("Tea.", origin="inferred", sources=sources, ttl=timedelta(days=1)).records[0]
    memory.retract(made.id)
    cells = Tags(memory.history(made.id)._repr_html_()).cells
    first, last = cells[:7], cells[7:]
    until = f"{made.expires_at:%Y-%m-%d %H:%M:%S}"
    assert first[1:5] == [
        "1",
        f"inferred, until {until}",
        "semantic",
        "assistant tool0, assistant tool1, assistant tool2 and 2 more",
    ]
    assert last[1:3] == ["2", f"inferred, retracted, until {until}"]


def test_a_hit_says_how_it_was_found(memory: Any) -> None:
    memory.remember("Tea.")
    head = re.findall(r"<th [^>]*>(.*?)</th>", memory.recall("tea")._repr_html_())
    assert head == ["text", "match", "score", "revision", "origin", "kind", "sources", "recorded (UTC)", "id"]
    assert Tags(memory.recall("tea")._repr_html_()).cells[1] == "lexical"
    assert Tags(memory.recall()._repr_html_()).cells[1:3] == ["recent", ""]


def test_nothing_found_says_so(memory: Any) -> None:
    assert memory.recall("tea")._repr_html_() == "<p><em>nothing found</em></p>"


def test_a_receipt_names_its_changes_and_holds_no_text(memory: Any) -> None:
    result = memory.remember_many([Draft(f"secret {n}", id=f"r{n}") for n in range(25)], operation_id="op<1>")
    shown = unescape(result.receipt._repr_html_())
    assert "receipt</b>: remember_many · scope revision 1" in shown
    assert "operation op<1>" in shown
    assert "create r19, revision 1" in shown
    assert "and 5 more changes" in shown
    assert "secret" not in shown
    again = memory.remember("secret 1", supersede="skip_equal").receipt._repr_html_()
    assert "already_stored ×1" in again
    assert "no change" in again
