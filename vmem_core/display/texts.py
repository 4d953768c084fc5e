r"""Texts that cannot harm what shows them: no control, no turned direction, no tower of marks, no hidden letters.

Owns what is spelled out, and how a long text is cut. Every display uses it, on a page and on a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_LONGEST_QUOTED: Final = 240
MOST_MARKS: Final = 8  # no writing system stacks more on one letter
# The flags of England, Scotland and Wales: a black flag and letters that are tags.
_FLAGS: Final = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
# What a terminal obeys instead of showing (C0, C1), what breaks lines unseen (U+2028, U+2029), what turns the direction
# of the text around it, and what nobody sees but a model reads: tags, and
# selectors of variants that follow no ideograph.
_OBEYED: Final = re.compile(
    f"(?P<flag>{_FLAGS})"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|[\U000e0000-\U000e007f]"
    "|(?<![\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]"
)
_BREAKS: Final = re.compile(r"[\t\n]")
_LONG_RUN: Final = re.compile(rf"[^\x00-\x7f]{{{MOST_MARKS + 1},}}")
_DRAWN_ON: Final = frozenset({"Mn", "Mc", "Me", "Cf"})
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL"})


def visible(text: str) -> str:
    r"""A text without what would be obeyed: each stands as its escape. Line breaks and tabs stay.

    More than eight marks on one letter are counted instead of shown.

    >>> print(visible("red: \x1b[31m"))
    red: \x1b[31m
    >>> visible("e" + "\u0301" * 20) == "e" + "\u0301" * 8 + "[12 more marks]"
    True
    """
    text = _OBEYED.sub(_spelled, text.replace("\r\n", "\n"))
    return text if text.isascii() else _LONG_RUN.sub(lambda found: _fewer_marks(found[0]), text)


def _spelled(found: re.Match[str]) -> str:
    return found[0] if found["flag"] else _escape(found[0])


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _fewer_marks(run: str) -> str:
    kept: list[str] = []
    marks = 0
    for char in (*run, ""):
        if char and is_mark(char):
            marks += 1
            if marks > MOST_MARKS:
                continue
        else:
            if marks > MOST_MARKS:
                more = marks - MOST_MARKS
                kept.append(f"[{more:,} more mark{'s' if more > 1 else ''}]")
            marks = 0
        kept.append(char)
    return "".join(kept)


def is_mark(char: str) -> bool:
    """Whether a character is drawn on the one before it, or not at all, such as what joins two emoji."""
    return not char.isascii() and unicodedata.category(char) in _DRAWN_ON


def label(text: str) -> str:
    r"""A name or id in one line, never cut: line breaks and tabs are spelled out too.

    >>> print(label("a\nb"))
    a\nb
    """
    return _BREAKS.sub(lambda found: _escape(found[0]), visible(text))


def shortened(text: str, longest: int, length: int | None = None) -> tuple[str, str]:
    """The beginning of a text as it can be shown, and what to say of the rest: nothing if that is all of it.

    Args:
        text: As stored.
        longest: How many characters may be shown.
        length: How many characters to say there are, if it is not the text's own number.

    >>> shortened("green tea", 5)
    ('green', '… 9 characters in all')
    """
    # No more than that is looked at: a text may be long, and most of what is spelled out gets longer.
    head = visible(text[: 4 * longest + MOST_MARKS])
    if len(text) <= 4 * longest + MOST_MARKS and len(head) <= longest:
        return head, ""
    end = longest
    while end > 1 and end < len(head) and _hangs_on(head, end):
        end -= 1
    return head[:end].rstrip(), f"… {length or len(text):,} characters in all"


def _hangs_on(text: str, place: int) -> bool:
    """Whether a cut at a place would divide what is drawn as one: a letter and its marks, a joined emoji."""
    return is_mark(text[place]) or text[place - 1] == "\u200d"


def is_right_to_left(text: str) -> bool:
    """Whether a text holds letters that are written from right to left."""
    return not text.isascii() and any(unicodedata.bidirectional(char) in _RIGHT_TO_LEFT for char in text)


def quoted(text: str) -> str:
    """A text as Python spells it, and nothing hidden in it; a long one is cut, with its length told.

    >>> quoted("tea")
    "'tea'"
    """
    if len(text) <= _LONGEST_QUOTED:
        return visible(repr(text))
    return f"{visible(repr(text[:_LONGEST_QUOTED]))}… {len(text):,} characters in all"
