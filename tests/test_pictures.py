"""The pictures of the documentation: whole, with words for those who cannot see them, readable in light and dark."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages import contrast

PICTURES = sorted((Path(__file__).resolve().parent.parent / "docs" / "pictures").glob("*.svg"))
NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_there_are_pictures() -> None:
    assert [path.stem for path in PICTURES] == ["architecture", "record_life"]


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_says_in_words_what_it_shows_and_runs_nothing(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{NAMESPACE}svg"
    assert root.get("role") == "img"
    for name in (root.get("aria-labelledby") or "").split():
        (said,) = (one for one in root.iter() if one.get("id") == name)
        assert said.tag in (f"{NAMESPACE}title", f"{NAMESPACE}desc")
        assert said.text
        assert len(said.text) > 15
    kinds = {one.tag.removeprefix(NAMESPACE) for one in root.iter()}
    assert kinds == {"svg", "title", "desc", "style", "defs", "marker", "path", "rect", "text"}
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on") or "href" in name]


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_no_word_stands_outside_of_its_picture(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    _, _, width, height = (float(one) for one in (root.get("viewBox") or "").split())
    for text in root.iter(f"{NAMESPACE}text"):
        classes = (text.get("class") or "").split()
        x, y = float(text.get("x") or 0), float(text.get("y") or 0)
        length = (7 if "quiet" in classes else 8.6) * len(text.text or "")  # pixels, of a wide font
        left = x - length / 2 if "middle" in classes else x
        assert left >= 0, text.text
        assert left + length <= width, text.text
        assert 10 < y < height, text.text


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_every_word_can_be_read_in_light_and_dark(path: Path) -> None:
    style = ElementTree.parse(path).getroot().findtext(f"{NAMESPACE}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for theme in (light, dark):
        colours = dict(re.findall(r"^\s*\.?([\w-]+) \{ fill: (#[0-9a-f]{6})", theme, re.MULTILINE))
        boxes = ("plain", "sure", "guess", "gone", "blue")
        pairs = [("text", "paper"), ("quiet", "paper"), ("text", "plain"), *itertools.product(["quiet"], boxes)]
        for ink, paper in [*pairs, *((f"on-{one}", one) for one in boxes[1:])]:
            assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
