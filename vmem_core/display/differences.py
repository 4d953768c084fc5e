"""What changed between two texts, word by word, as ``ins`` and ``del`` with marks that need no colour.

Owns what a word is here and how much of a long text is compared. The comparison itself is ``difflib``'s.
"""

from __future__ import annotations

import re
from html import escape
from typing import Final

from vmem_core.display.texts import is_mark, shortened

_MOST_WORDS: Final = 400  # comparing takes quadratic time
_LONGEST_SAME: Final = 240
_LONGEST_CHANGE: Final = 600
_UNSPACED: Final = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
# White space, one character of a script that writes no spaces, letters and digits, any other sign.
_WORD: Final = re.compile(rf"\s+|{_UNSPACED.pattern}|\w+|.", re.DOTALL)
_JOINER: Final = "\u200d"
Piece = tuple[str, list[str]]


def words(text: str) -> list[str]:
    """The words, signs and blanks of a text; marks and joined emoji stay with what they are drawn on.

    >>> words("Ada's café.")
    ['Ada', "'", 's', ' ', 'café', '.']
    """
    found: list[list[str]] = []  # pieces of a word, joined at the end: a text may be nothing but marks
    for piece in _WORD.findall(text):
        if found and _belongs(piece, found[-1]):
            found[-1].append(piece)
        else:
            found.append([piece])
    return ["".join(pieces) for pieces in found]


def _belongs(piece: str, word: list[str]) -> bool:
    """Whether a piece goes on with a word: a mark on it, what is joined to it, or what a mark in it had cut off."""
    last = word[-1][-1]
    if is_mark(piece[0]) or last == _JOINER:
        return True
    return is_mark(last) and word[0][0].isalnum() and piece[0].isalnum() and not _UNSPACED.match(piece)


def difference(old: str, new: str) -> str:
    """The new text as mark-up, with what was taken from the old one and what was put in."""
    return "".join(_shown(kind, "".join(piece)) for kind, piece in _changes(words(old), words(new)))


def _changes(old: list[str], new: list[str]) -> list[Piece]:
    """Pieces in order: ``=`` is in both, ``-`` in the old one, ``+`` in the new one."""
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    found = [("=", new[:start]), *_compared(middle_old, middle_new), ("=", new[len(new) - end :])]
    return [(kind, piece) for kind, piece in found if piece]


def _shared(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _compared(old: list[str], new: list[str]) -> list[Piece]:
    if len(old) > _MOST_WORDS or len(new) > _MOST_WORDS:
        return [("-", old), ("+", new)]
    from difflib import SequenceMatcher

    found: list[Piece] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        between = kind == "equal" and found and d < len(new) and not "".join(new[c:d]).strip()
        # A blank between two changes belongs to both: one change of two words reads better than two.
        found += [("=", new[c:d])] if kind == "equal" and not between else [("-", old[a:b]), ("+", new[c:d])]
    return _joined(found)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Changes that follow each other as one: what was taken, then what was put in."""
    joined: list[Piece] = []
    taken: list[str] = []
    put: list[str] = []
    for kind, piece in [*pieces, ("=", [])]:
        if kind == "=":
            joined += [("-", taken), ("+", put), ("=", piece)]
            taken, put = [], []
        elif kind == "-":
            taken = taken + piece
        else:
            put = put + piece
    return joined


def _shown(kind: str, piece: str) -> str:
    if kind == "=":
        return escape(_in_the_middle(piece))
    tag, mark = ("del", "−") if kind == "-" else ("ins", "+")
    shown, rest = shortened(piece, _LONGEST_CHANGE)
    told = f" <small>{rest}</small>" if rest else ""
    return f"<{tag}><b>{mark}</b>{escape(shown)}</{tag}>{told}"


def _in_the_middle(piece: str) -> str:
    """What is the same in both: its two ends are enough."""
    if len(piece) <= 2 * _LONGEST_SAME:
        return shortened(piece, 4 * _LONGEST_SAME)[0]
    head, _ = shortened(piece[:_LONGEST_SAME], _LONGEST_SAME)
    tail, _ = shortened(piece[-_LONGEST_SAME:], 2 * _LONGEST_SAME)
    return f"{head} [… {len(piece) - 2 * _LONGEST_SAME:,} characters the same …] {tail}"
