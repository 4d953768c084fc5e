"""Limits: the promised defaults, what can be changed, and what a refusal says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fakes import ADA

from vmem_core import Draft, InMemoryStore, InvalidRequestError, Limits, Link, MemorySession, Scope, Source, text_digest


def test_the_defaults_are_the_promised_ones() -> None:
    assert dataclasses.asdict(Limits()) == {
        "text_chars": 100_000, "id_chars": 512, "metadata_bytes": 65_536, "metadata_depth": 32, "message_chars": 20_000
    }  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, True, "5", 5.0, None], ids=range(6))
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
def test_a_limit_is_a_whole_number_of_one_or_more(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Limits(**{name: value})
    assert caught.value.path == f"limits.{name}"


def test_metadata_can_be_let_in_to_two_hundred_levels_and_no_deeper() -> None:
    assert Limits(metadata_depth=200).metadata_depth == 200
    with pytest.raises(InvalidRequestError):
        Limits(metadata_depth=201)


def test_limits_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().text_chars = 5  # type: ignore[misc]


def nested(levels: int) -> dict[str, Any]:
    """Metadata of so many levels."""
    inner: Any = 1
    for level in range(levels):
        inner = {"a": inner} if level % 2 or level == levels - 1 else [inner]
    return inner  # type: ignore[no-any-return]


@pytest.mark.parametrize("levels", [1, 2, 5, 32])
def test_depth_counts_levels_of_lists_and_objects(levels: int) -> None:
    Limits(metadata_depth=levels).check_metadata(nested(levels))
    with pytest.raises(InvalidRequestError):
        Limits(metadata_depth=levels).check_metadata(nested(levels + 1))


@pytest.mark.parametrize(
    ("metadata", "size"),
    [({"a": 1}, 7), ({"a": "\u00e9"}, 10), ({"a": "\U0001f600"}, 12), ({"a": [1, 2]}, 11), ({"a": '"'}, 10),
     ({"a": "\n"}, 10)],
    ids=range(6),
)  # fmt: skip
def test_metadata_is_measured_as_compact_json_in_utf8(metadata: dict[str, Any], size: int) -> None:
    Limits(metadata_bytes=size).check_metadata(metadata)
    with pytest.raises(InvalidRequestError) as caught:
        Limits(metadata_bytes=size - 1).check_metadata(metadata)
    assert caught.value.path == "metadata"


def test_text_is_measured_in_characters() -> None:
    Limits(text_chars=2).check_text("\U0001f600\u00e9")
    with pytest.raises(InvalidRequestError, match=r"text: has 3 characters, the limit is 2"):
        Limits(text_chars=2).check_text("tea")


def test_a_refusal_tells_sizes_and_never_the_value() -> None:
    limits, secret = Limits(text_chars=5, id_chars=5, metadata_bytes=5), "SENTINEL-7f3a"
    source = Source("user", text_digest("x"), uri=secret)
    for refuse in (
        lambda: limits.check_draft(Draft(secret)),
        lambda: limits.check_id(secret, "id"),
        lambda: limits.check_draft(Draft("tea", metadata={secret: secret})),
        lambda: limits.check_sources((source,)),
        lambda: limits.check_links((Link(secret, "r"),)),
        lambda: limits.check_scope(Scope(user_id=secret)),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            refuse()
        assert "SENTINEL" not in str(caught.value)
        assert any(char.isdigit() for char in str(caught.value))


def test_a_session_checks_its_scope_against_its_limits() -> None:
    store = InMemoryStore()
    MemorySession(store, Scope(user_id="u" * 512))
    with pytest.raises(InvalidRequestError) as caught:
        MemorySession(store, Scope(user_id="ada", chat_id="c" * 513))
    assert caught.value.path == "scope.chat_id"
    MemorySession(store, Scope(chat_id="c" * 513), limits=Limits(id_chars=600))
    for limits in (None, {}, 5):
        with pytest.raises(InvalidRequestError) as caught:
            MemorySession(store, ADA, limits=limits)  # type: ignore[arg-type]
        assert caught.value.path == "limits"
