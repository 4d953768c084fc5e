"""Strings: the gate every one passes, digests of what was read, and when two texts are equal.

Owns what counts as a sound string, as a blank one, the JSON in a string, ids made of what they stand for, and the
digest and equality rules. Does not own search tokens (``tokens.py``) or limits of length (``limits.py``).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from vmem_core.errors import InvalidRequestError

# Letters and symbols that Unicode calls visible but that show nothing: Hangul fillers, the blank Braille pattern.
_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_LONG_SIGN_RUN = re.compile(r"((?:[^\w\s]){32})")
_LINE_BREAKS = str.maketrans(
    {"\n": "\\n", "\r": "\\r", "\v": "\\n", "\f": "\\n", "\x1c": "\\n", "\x1d": "\\n", "\x1e": "\\n",
     "\x85": "\\n", "\u2028": "\\n", "\u2029": "\\n"}
)  # fmt: skip
_ASCII_BLANK = "".join(map(chr, range(33))) + "\x7f"
_BLANK_CATEGORIES = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


def check_string(value: object, path: str) -> str:
    """The gate for strings of the host: a ``str`` that every store can hold, returned unchanged.

    Raises:
        InvalidRequestError: For another type, a NUL character or a lone surrogate, with ``path``.

    >>> check_string("tea", "text")
    'tea'
    """
    if not isinstance(value, str):
        raise InvalidRequestError(f"must be a string, not {type(value).__name__}", path=path)
    if "\x00" in value:
        raise InvalidRequestError("holds a NUL character; remove it", path=path)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequestError("holds a lone surrogate, half of a character; remove it", path=path) from None
    return value if type(value) is str else str.__str__(value)


def check_text(value: object, path: str) -> str:
    """Like :func:`check_string`, and not blank.

    >>> check_text(" ", "text")
    Traceback (most recent call last):
    vmem_core.errors.InvalidRequestError: text: must not be blank
    """
    text = check_string(value, path)
    if is_blank(text):
        raise InvalidRequestError("must not be blank", path=path)
    return text


def mend_string(value: str) -> str:
    r"""The gate for strings of a model, a tool or a message: what no store can hold becomes U+FFFD.

    Surrogates that form a pair become the character they stand for.

    >>> mend_string("ok \ud83d, \x00") == "ok \ufffd, \ufffd"
    True
    """
    if not value.isascii():
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value.replace("\x00", "\ufffd")


def is_blank(text: str) -> bool:
    r"""Whether a text shows nothing: white space, control and format characters, invisible letters only.

    >>> is_blank("\u200d\n"), is_blank("x")
    (True, False)
    """
    if text.isascii():
        return not text.strip(_ASCII_BLANK)
    return all(_shows_nothing(char) for char in text)


def _shows_nothing(char: str) -> bool:
    if char in _INVISIBLE or unicodedata.category(char) in _BLANK_CATEGORIES:
        return True
    return "\ufe00" <= char <= "\ufe0f"  # variation selectors only choose how the character before them looks


def one_line(text: str) -> str:
    r"""A text on one line, its line breaks shown as ``\n``, so that no text can forge a line of a prompt.

    >>> one_line("a\n[s1] user: b")
    'a\\n[s1] user: b'
    """
    return text.translate(_LINE_BREAKS)


def json_encoder(
    *, ensure_ascii: bool = False, sort_keys: bool = False, default: Callable[[Any], Any] | None = None
) -> Callable[[Any], str]:
    """A function that writes values as compact JSON; they must hold no circle.

    ``JSONEncoder.encode`` makes its inner encoder anew for every value, which costs more than a small value does.

    >>> json_encoder()({"é": [1, None]})
    '{"é":[1,null]}'
    """
    outer = json.JSONEncoder(
        ensure_ascii=ensure_ascii, sort_keys=sort_keys, default=default, separators=(",", ":"), check_circular=False
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # a Python without the C module
        return outer.encode
    write = json.encoder.encode_basestring_ascii if ensure_ascii else json.encoder.encode_basestring
    inner = make(None, outer.default, write, None, ":", ",", sort_keys, False, True)

    def encode(value: Any) -> str:
        return "".join(inner(value, 0))

    return encode


def text_digest(text: str) -> str:
    """The digest a source carries: ``"sha256:"`` and the hex SHA-256 of the text in UTF-8.

    >>> text_digest("tea")[:15]
    'sha256:a9f74d1e'
    """
    import hashlib

    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def derived_id(prefix: str, *parts: Any) -> str:
    """An id made of what it stands for: the same for the same parts, in every process, and telling nothing of them.

    Args:
        prefix: The form's name and version, such as ``"vmem-op-1"``; the id begins with it.
        parts: JSON values.

    >>> derived_id("job-1", "ada", 7) == derived_id("job-1", "ada", 7) != derived_id("job-1", "ada", 8)
    True
    """
    return f"{prefix}:{text_digest(json.dumps([prefix, *parts])).removeprefix('sha256:')}"


def read_json(text: str) -> Any:
    """The object, list or string that a text is as JSON; else None.

    >>> read_json('{"id": 1}'), read_json("tea"), read_json("7")
    ({'id': 1}, None, None)
    """
    if not text.lstrip().startswith(("[", "{", '"')):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def equality_form(text: str) -> str:
    """Two texts are equal when these forms are: trimmed, NFC, case-folded.

    >>> equality_form(" Tea at 4 ") == equality_form("tea AT 4")
    True
    """
    return _compose(_compose(text.strip()).casefold())


def _compose(text: str) -> str:
    """NFC, in pieces where signs stand in long runs: sorting a run of marks takes quadratic time."""
    if text.isascii():
        return text
    return "".join(unicodedata.normalize("NFC", piece) for piece in _LONG_SIGN_RUN.split(text))


def text_key(text: str) -> int:
    """A signed 64-bit hash of the equality form: a fast first look, never the proof that two texts are equal.

    >>> text_key("Tea") == text_key(" tea ")
    True
    """
    import hashlib

    digest = hashlib.blake2b(equality_form(text).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
