"""Word-level differences: what is one word, what changed, and that no text takes long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import read

from vmem_core.display.differences import difference, words
from vmem_core.display.markup import frame
from vmem_core.display.texts import visible


def changes(old: str, new: str) -> list[str]:
    """The pieces of a difference: ``-`` taken out, ``+`` put in, the rest is in both."""
    signs = {"del": "-", "ins": "+"}
    page = read(frame(difference(old, new)))
    return [one if isinstance(one, str) else signs.get(one.tag, "?") + one.text[1:] for one in page.inside]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Ada lives in Lisbon.", "Ada lives in Porto.", ["Ada lives in ", "-Lisbon", "+Porto", "."]),
        ("Ada likes tea.", "Ada likes green tea.", ["Ada likes ", "+green ", "tea."]),
        ("Ada likes green tea.", "Ada likes tea.", ["Ada likes ", "-green ", "tea."]),
        ("the old red house", "the new blue house", ["the ", "-old red", "+new blue", " house"]),
        ("tea", "coffee", ["-tea", "+coffee"]),
        ("我喜欢喝咖啡", "我喜欢喝茶", ["我喜欢喝", "-咖啡", "+茶"]),
        ("one\ntwo", "one\n\ntwo", ["one", "-\n", "+\n\n", "two"]),
        ("a <b>bold</b> word", "a <i>bold</i> word", ["a <", "-b", "+i", ">bold</", "-b", "+i", "> word"]),
    ],
)
def test_what_changed_is_told_word_by_word(old: str, new: str, expected: list[str]) -> None:
    assert changes(old, new) == expected


def test_a_mark_and_what_it_is_drawn_on_are_never_divided() -> None:
    assert words("cafe\u0301 noir") == ["cafe\u0301", " ", "noir"]
    assert words("re\u0301sume\u0301") == ["re\u0301sume\u0301"]
    assert words("👨\u200d👩\u200d👧 👋🏽") == ["👨\u200d👩\u200d👧", " ", "👋", "🏽"]
    assert words("ที่นี่") == ["ที่", "นี่"]


@given(st.text("ab 1_\n.é咖ที่\u0301\u200d👩\u202e", max_size=60))
def test_the_words_of_a_text_are_the_text(text: str) -> None:
    assert "".join(words(text)) == text


@given(st.text("ab <&\n\u0301é", max_size=40), st.text("ab <&\n\u0301é", max_size=40))
def test_both_texts_can_be_read_from_a_difference(old: str, new: str) -> None:
    pieces = changes(old, new)
    assert "".join(one.removeprefix("-") for one in pieces if one[0] != "+") == visible(old)
    assert "".join(one.removeprefix("+") for one in pieces if one[0] != "-") == visible(new)


def test_a_long_part_that_stayed_is_shown_by_its_ends() -> None:
    middle = "word " * 2_000
    shown = changes(f"Lisbon {middle}", f"Porto {middle}")
    assert shown[:2] == ["-Lisbon", "+Porto"]
    assert "[… 9,521 characters the same …]" in shown[2]
    assert len(shown[2]) < 600


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x" * 100_000, "y" * 100_000),
        ("word " * 20_000 + ".", "other " * 16_000 + "!"),
        ("a b " * 25_000 + "a", "b a " * 25_000 + "b"),
        ("e" + "\u0301" * 99_999, "e" + "\u0300" * 99_999),
        ("e\u0301" * 50_000, "o\u0301" * 50_000),
        ("\u202e" * 100_000, "\x1b" * 100_000),
    ],
    ids=["letters", "words", "order", "marks", "letters with marks", "controls"],
)
def test_the_longest_texts_are_compared_in_little_and_told_in_length(old: str, new: str) -> None:
    page = read(frame(difference(old, new)))
    assert len(page.text) < 4_000
    told = [one.text for one in page.all("small")]
    assert told == [f"… {len(text):,} characters in all" for text in (old, new)]
