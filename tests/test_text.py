"""The gate of strings, blank texts, digests, and when two texts are equal."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmem_core import InvalidRequestError, text_digest
from vmem_core.text import check_string, check_text, equality_form, is_blank, mend_string, text_key

ANY_TEXT = st.text(st.characters(), max_size=40)  # surrogates and NUL too


@given(ANY_TEXT)
def test_the_gate_lets_through_exactly_what_every_store_can_hold(text: str) -> None:
    sound = "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
    if sound:
        assert check_string(text, "path") == text
    else:
        with pytest.raises(InvalidRequestError) as caught:
            check_string(text, "path")
        assert caught.value.path == "path"


@given(ANY_TEXT)
def test_a_mended_string_passes_the_gate_and_loses_nothing_else(text: str) -> None:
    mended = mend_string(text)
    assert check_string(mended, "path") == mended
    assert mend_string(mended) == mended
    if "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        assert mended == text


def test_what_cannot_be_held_becomes_the_replacement_character() -> None:
    assert mend_string("ok \ud83d") == "ok \ufffd"
    assert mend_string("\ude00 a\x00b") == "\ufffd a\ufffdb"
    assert mend_string(json.loads('"\\ud83d\\ude00"')) == "\U0001f600"
    assert mend_string("\ud83d" + "\ude00") == "\U0001f600"


@pytest.mark.parametrize("value", [None, 5, b"tea", ["tea"], bytearray(b"x"), object()], ids=range(6))
def test_what_is_no_string_is_refused_by_its_type(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"path: must be a string, not {type(value).__name__}"):
        check_string(value, "path")


def test_a_subclass_of_str_comes_out_as_a_plain_string() -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "LOUD"

    checked = check_string(Loud("quiet"), "path")
    assert (type(checked), checked) == (str, "quiet")


BLANK = ["", " ", "\t\r\n", "\x00\x01", "\x7f", "\xa0", "\u1680", "\u2003", "\u2028", "\u200b\u200c\u200d",
"\u2060", "\u3000",
         "\ufeff", "\u00ad", "\u115f", "\u3164", "\u2800", "\ufe0f", "\u202e", "\U000e0001"]  # fmt: skip
NOT_BLANK = ["x", " x ", ".", "0", "\u0301", "\ufffd", "\U0001f600", "\u54d6", "\u200dx", "_", "\ue000"]


@pytest.mark.parametrize("text", BLANK, ids=range(len(BLANK)))
def test_a_text_that_shows_nothing_is_blank(text: str) -> None:
    assert is_blank(text)
    if "\x00" not in text:
        with pytest.raises(InvalidRequestError, match="path: must not be blank"):
            check_text(text, "path")


@pytest.mark.parametrize("text", NOT_BLANK, ids=range(len(NOT_BLANK)))
def test_a_text_that_shows_something_is_not_blank(text: str) -> None:
    assert not is_blank(text)
    assert check_text(text, "path") == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_digest_is_sha256_of_the_utf8_text(text: str) -> None:
    assert text_digest(text) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


EQUAL = [
    ("tea", " Tea\n"),
    ("caf\u00e9", "CAFE\u0301"),
    ("stra\u00dfe", "STRASSE"),
    ("\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\u03c3\u03af\u03c3\u03c5\u03c6\u03bf\u03c3"),
    ("\u3000tea", "tea"),
]
OTHER = [
    ("tea", "t ea"),
    ("tea", "tea."),
    ("resume", "r\u00e9sum\u00e9"),
    ("\ufb01sh", "fissh"),
    ("1", "\u00b9"),
    ("\u304b\u3099\u3042", "\u304b\u3042"),
]


@pytest.mark.parametrize("pair", EQUAL, ids=range(len(EQUAL)))
def test_texts_are_equal_trimmed_composed_and_folded(pair: tuple[str, str]) -> None:
    assert equality_form(pair[0]) == equality_form(pair[1])
    assert text_key(pair[0]) == text_key(pair[1])


@pytest.mark.parametrize("pair", OTHER, ids=range(len(OTHER)))
def test_texts_that_differ_otherwise_are_not_equal(pair: tuple[str, str]) -> None:
    assert equality_form(pair[0]) != equality_form(pair[1])
    assert text_key(pair[0]) != text_key(pair[1])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_equality_does_not_depend_on_how_a_text_is_composed(text: str) -> None:
    form = equality_form(text)
    assert equality_form(unicodedata.normalize("NFD", text)) == form
    assert equality_form(unicodedata.normalize("NFC", text)) == form
    assert equality_form(f"\n {text} ") == form
    assert -(2**63) <= text_key(text) < 2**63


def test_equality_of_a_hostile_text_takes_no_quadratic_time() -> None:
    # A run of marks whose sorting takes quadratic time: 100,000 of them would hold this test for minutes.
    marks = "\u0301\u0323" * 50_000
    assert equality_form(f"a{marks}") == equality_form(f"A{marks}")
