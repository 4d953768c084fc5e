"""Search tokens: the one tokenizer of texts and queries, and the hashes that the index keeps of them.

Owns how a text becomes words and stems, which words of a query carry no meaning, and the 64-bit hashes of tokens
and of metadata pairs. Does not own ranking (``ranking.py``), the index (``index.py``) or the check of strings
(``text.py``). Any string is taken; none raises, and every step is linear in its length.

A text passes four stations: NFKC and case folding; one translation of characters (marks leave Latin and Greek
letters, signs become spaces); words by script; stems. Whatever changes here changes what stored hashes mean, so it
raises ``TOKENIZER_VERSION`` and stores tokenise anew.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from vmem_core.errors import InvalidRequestError
from vmem_core.text import json_encoder

TOKENIZER_VERSION = 1
DEFAULT_LANGUAGE = "english"

_HASH_BYTES = 8
# Longer "words" are keys, hashes or noise: no stem is worth it, and no cache should hold on to them.
_LONGEST_CACHED = 64

# Where the writing leaves no space between words, and the script each belongs to. First words of Unicode names.
_UNSPACED = {
    "CJK": "han",
    "IDEOGRAPHIC": "han",
    "HIRAGANA": "kana",
    "KATAKANA": "kana",
    "KATAKANA-HIRAGANA": "kana",  # the long-vowel sign
    "HANGUL": "hangul",
    "THAI": "thai",
    "LAO": "lao",
    "KHMER": "khmer",
    "MYANMAR": "myanmar",
}
_APOSTROPHES = "'’ʼʻ"

# Measured on LoCoMo, share of the gold turns among the first ten by text alone: 0.596 without a list, 0.583 with
# bm25s' short one, 0.642 with its long one, 0.607 with the 1,307 words of the package stop-words.
_STOP_WORD_LISTS = {
    "danish": "STOPWORDS_DANISH",
    "dutch": "STOPWORDS_DUTCH",
    "english": "STOPWORDS_EN_PLUS",
    "french": "STOPWORDS_FRENCH",
    "german": "STOPWORDS_GERMAN",
    "italian": "STOPWORDS_ITALIAN",
    "norwegian": "STOPWORDS_NORWEGIAN",
    "portuguese": "STOPWORDS_PORTUGUESE",
    "russian": "STOPWORDS_RUSSIAN",
    "spanish": "STOPWORDS_SPANISH",
    "swedish": "STOPWORDS_SWEDISH",
    "turkish": "STOPWORDS_TURKISH",
}

# Characters of the class string: what kind of character stands at the same place of the text. A script gets the next
# free code when it is first seen; the codes never leave this process.
_DIGIT, _MARK, _APOSTROPHE, _LATIN, _GREEK = "d", "m", "'", "\ue000", "\ue001"
_CODES = {"LATIN": _LATIN, "GREEK": _GREEK}
_SPACED_CODES, _UNSPACED_CODES = itertools.count(0xE002), itertools.count(0xF000)

_WORDS = r"d*([\uE000-\uEFFF])(?:\1|[dm]{})*|([\uF000-\uF8FF])(?:\2|m)*|d[dm]*"
_WORD_CLASSES = re.compile(_WORDS.format(""))
_WORD_CLASSES_ENGLISH = re.compile(_WORDS.format(r"|'(?=\1|d)"))
_ASCII_WORDS = re.compile(r"[a-z0-9]+")
_ASCII_WORDS_ENGLISH = re.compile(r"[0-9]*[a-z][a-z0-9]*(?:'[a-z0-9]+)*|[0-9]+")
_CHARACTERS = re.compile(r"[^m]m*|m+")  # a base and its marks, in a class string
_LONG_SIGN_RUN = re.compile(r"(?:[^\w\s]|[\uff9e\uff9f]){32}")


def languages() -> frozenset[str]:
    """The languages that have stems: the names ``tokenize`` takes.

    >>> {"english", "german", "russian"} <= languages()
    True
    """
    import Stemmer

    return frozenset(Stemmer.algorithms())


def tokenize(text: str, language: str = DEFAULT_LANGUAGE) -> list[str]:
    """The search tokens of a text, in order and with repeats.

    Args:
        text: Any string.
        language: One of :func:`languages`; decides on stems, and English keeps an apostrophe inside a word.

    Raises:
        InvalidRequestError: For a language without stems.

    >>> tokenize("She ordered two cafés’ teas")
    ['she', 'order', 'two', 'cafe', 'tea']
    >>> tokenize("喝咖啡 at 5pm")
    ['喝', '喝咖', '咖', '咖啡', '啡', 'at', '5pm']
    """
    stem = _stemmer(language)
    return [stem(word) if len(word) <= _LONGEST_CACHED else word for word in _words(text, language)]


def query_tokens(text: str, language: str = DEFAULT_LANGUAGE) -> list[str]:
    """The tokens to search for: each once, in order, without stop words unless nothing else remains.

    >>> query_tokens("Where is the coffee, and where's the sugar?")
    ['coffe', 'sugar']
    >>> query_tokens("To be or not to be")
    ['to', 'be', 'or', 'not']
    """
    stem = _stemmer(language)
    words = list(dict.fromkeys(_words(text, language)))
    stops = _stop_words(language)
    kept = [word for word in words if word not in stops and word.partition("'")[0] not in stops]
    return list(dict.fromkeys(map(stem, kept or words)))


def token_hashes(tokens: Iterable[str]) -> bytes:
    """Eight bytes a token, in order and with repeats: BLAKE2b, to be read as little-endian unsigned integers.

    >>> len(token_hashes(["tea", "tea"])), token_hashes(["tea", "tea"])[:8] == token_hashes(["tea"])
    (16, True)
    """
    return b"".join([_token_hash(t) if len(t) <= _LONGEST_CACHED else _digest(t) for t in tokens])


def text_hashes(text: str, language: str = DEFAULT_LANGUAGE) -> bytes:
    """``token_hashes(tokenize(text, language))``, from word to hash in one step.

    >>> text_hashes("two teas") == token_hashes(tokenize("two teas"))
    True
    """
    return b"".join(map(_word_hashes(language).__getitem__, _words(text, language)))


def facet_hash(key: str, value: Any) -> int:
    """A 64-bit hash of one metadata pair; equal pairs, by JSON's equality, have equal hashes.

    Numbers are equal by value (``1`` and ``1.0``, but neither is ``true``), objects whatever the order of their keys,
    arrays only in the same order.

    Args:
        key: A top-level key of the metadata.
        value: Anything JSON holds.

    >>> facet_hash("n", 1) == facet_hash("n", 1.0), facet_hash("n", 1) == facet_hash("n", True)
    (True, False)
    """
    return int.from_bytes(_digest(_canonical_pair(key, value)), "little")


def facets(metadata: Mapping[str, Any]) -> bytes:
    """The hashes of all top-level pairs, eight little-endian bytes each.

    >>> facets({"topic": "tea"}) == facet_hash("topic", "tea").to_bytes(8, "little")
    True
    """
    return b"".join([_digest(_canonical_pair(key, value)) for key, value in metadata.items()])


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()


_encode = json_encoder(ensure_ascii=True, sort_keys=True)
_token_hash = functools.lru_cache(maxsize=65_536)(_digest)


def _canonical_pair(key: str, value: Any) -> str:
    return _encode([key, _canonical(value)])


def _canonical(value: Any) -> Any:
    """The value with every float that is a whole number as an ``int``, so that equal numbers are written alike."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value


# ------------------------------------------------------------------------------------------------- text to words


def _words(text: str, language: str) -> list[str]:
    """The words of a text before stemming; a run of unspaced writing gives its characters and pairs."""
    folded = text.lower() if text.isascii() else _fold(text)
    english = language == "english"
    if folded.isascii():
        return (_ASCII_WORDS_ENGLISH if english else _ASCII_WORDS).findall(folded)
    return list(_words_by_script(folded, _WORD_CLASSES_ENGLISH if english else _WORD_CLASSES))


def _fold(text: str) -> str:
    # Normalisation sorts a run of combining marks by insertion: 100,000 of them took 8 s. A space ends the run.
    text = _LONG_SIGN_RUN.sub(r"\g<0> ", text)
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return text.translate(_FOLDED)


def _words_by_script(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    classes = text.translate(_CLASSES)
    for match in pattern.finditer(classes):
        start, end = match.span()
        if match[2] is not None:
            yield from _characters_and_pairs(text, classes, start, end)
        elif match[1] in {None, _LATIN, _GREEK} and _MARK in match[0]:
            # Marks that no composed letter took up, as in "x̌".
            yield "".join([text[n] for n in range(start, end) if classes[n] != _MARK])
        else:
            yield text[start:end]


def _characters_and_pairs(text: str, classes: str, start: int, end: int) -> Iterator[str]:
    before = ""
    for match in _CHARACTERS.finditer(classes, start, end):
        character = text[match.start() : match.end()]
        if before:
            yield before + character
        yield character
        before = character


class _Translation(dict[int, str]):
    """A table for ``str.translate`` that is filled from a function, a character at a time, as they are met."""

    _room = 65_536  # the assigned characters of Unicode would be twice as many

    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__()
        self._translate = translate

    def __missing__(self, code: int) -> str:
        value = self._translate(chr(code))
        if len(self) < self._room:
            self[code] = value
        return value


def _folded(char: str) -> str:
    """What stands for a normalised, case-folded character: a base letter, the same character, a space or nothing."""
    if char in _APOSTROPHES:
        return _APOSTROPHE
    category = unicodedata.category(char)
    if category[0] == "M":
        return "" if unicodedata.name(char, "").startswith("VARIATION SELECTOR") else char
    if category == "Cf" and char != "\u200b":  # joiners and direction marks are inside words, zero-width space is not
        return ""
    if not char.isalnum():
        return " "
    if char == "ё":
        return "е"
    if _script(char) not in {"LATIN", "GREEK"}:
        return char
    decomposed = unicodedata.normalize("NFD", char)
    return "".join([part for part in decomposed if not unicodedata.combining(part)])


def _character_class(char: str) -> str:
    """The class of a folded character."""
    if char in {" ", _APOSTROPHE}:
        return char
    category, script = unicodedata.category(char), _script(char)
    if category[0] == "M" or script == "MODIFIER":
        return _MARK
    if script in _UNSPACED.values() and category != "Nd":
        return _CODES.setdefault(script, chr(next(_UNSPACED_CODES)))
    if category[0] == "N":
        return _DIGIT
    return _CODES.setdefault(script, chr(next(_SPACED_CODES)))


def _script(char: str) -> str:
    """The script of a letter, by the first word of its Unicode name: Python knows no better source."""
    first = unicodedata.name(char, "").partition(" ")[0]
    return _UNSPACED.get(first, first)


_FOLDED, _CLASSES = _Translation(_folded), _Translation(_character_class)


# -------------------------------------------------------------------------------------------- stems and stop words


@functools.cache
def _stemmer(language: str) -> Callable[[str], str]:
    import Stemmer

    if language not in languages():
        raise InvalidRequestError(f"must be a language with stems: {', '.join(sorted(languages()))}", path="language")

    @functools.lru_cache(maxsize=65_536)
    def stem(word: str) -> str:
        # Stemmers are not safe to share between threads. A new one costs 0.3 µs, and only for a word not seen yet.
        stemmed: str = Stemmer.Stemmer(language, 0).stemWord(word)
        return stemmed

    return stem


class _Hashes(dict[str, bytes]):
    """The hash of each word's stem, kept for words that were met: most words of a text were."""

    _room = 65_536

    def __init__(self, stem: Callable[[str], str]) -> None:
        super().__init__()
        self._stem = stem

    def __missing__(self, word: str) -> bytes:
        if len(word) > _LONGEST_CACHED:
            return _digest(word)
        if len(self) >= self._room:
            self.clear()
        value = self[word] = _digest(self._stem(word))
        return value


@functools.cache
def _word_hashes(language: str) -> _Hashes:
    return _Hashes(_stemmer(language))


@functools.cache
def _stop_words(language: str) -> frozenset[str]:
    """The words of a language that carry no meaning, in the form this tokenizer gives them; none for most languages."""
    listed: Iterable[str] = getattr(_listed_stop_words(), _STOP_WORD_LISTS.get(language, ""), ())
    parts = [_words(entry, language) for entry in listed]
    words = {part[0] for part in parts if len(part) == 1}
    # The English list is made for tokenizers that cut don't in two. We do not, and "won" is a word of its own.
    return frozenset([word for word in words if f"{word}'t" not in words])


def _listed_stop_words() -> ModuleType:
    """bm25s' module of lists, without its package: that one imports numba and starts JAX where they are installed."""
    package = importlib.util.find_spec("bm25s")
    where = package.submodule_search_locations if package else None
    spec = importlib.machinery.PathFinder.find_spec("bm25s.stopwords", where)
    if spec is None or spec.loader is None:
        raise ImportError("bm25s, which has the lists of stop words, is not installed")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
