"""Reads what a value shows in a notebook: its elements, its words, and whether anything is in it that should not be."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from vmem_core.display.style import SHEET

TAGS = {
    "b", "br", "caption", "code", "dd", "del", "div", "dl", "dt", "ins", "label", "li", "ol", "p", "progress", "small",
    "span", "style", "table", "tbody", "td", "th", "thead", "time", "tr", "ul",
}  # fmt: skip
EMPTY = {"br"}
ATTRIBUTES = {"class", "datetime", "dir", "max", "scope", "value"}


@dataclass
class Element:
    """One element, with what is in it."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    inside: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All its words."""
        return "".join(one if isinstance(one, str) else one.text for one in self.inside)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements of a kind within, in order."""
        found = []
        for one in self.inside:
            if isinstance(one, Element):
                if one.tag == tag and all(one.attributes.get(name) == value for name, value in attributes.items()):
                    found.append(one)
                found += one.all(tag, **attributes)
        return found


class _Reader(HTMLParser):
    """Builds the tree; refuses what is not closed, and what a display must not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("page")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        element = Element(tag, dict(attrs))
        self.open[-1].inside.append(element)
        if tag not in EMPTY:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def read(page: str) -> Element:
    """The tree of one display, without its style sheet; whatever is no mark-up of ours is refused."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    (root,) = reader.open
    (frame,) = root.inside
    assert isinstance(frame, Element)
    assert frame.attributes["class"] == "vmem tex2jax_ignore mathjax_ignore"
    style = frame.inside.pop(0)
    assert isinstance(style, Element)
    assert (style.tag, style.text) == ("style", SHEET)
    assert not frame.all("style")
    return frame


def shown(value: Any) -> Element:
    """What a value shows in a notebook."""
    return read(value._repr_html_())


def _luminance(colour: str) -> float:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """How well a colour can be read on another, from 1 to 21."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)
