"""What Markdown needs to be told of a docstring: examples are code, and references are names.

Owns one extension of griffe, the program that reads docstrings for the API pages. Does not own the docstrings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n(?:^[ ]*\S.*\n?)*)+", re.MULTILINE)
_REFERENCE = re.compile(r":[a-z]+:`~?([^`]+)`")


def to_markdown(docstring: str) -> str:
    """A docstring with its doctests fenced and its references as code.

    >>> print(to_markdown("See :func:`recall`."))
    See `recall`.
    """
    text = _REFERENCE.sub(lambda found: f"`{found[1]}`", docstring)
    return _EXAMPLE.sub(_fence, text)


def _fence(found: re.Match[str]) -> str:
    indent = " " * (len(found[0]) - len(found[0].lstrip(" ")))
    return f"{indent}```pycon\n{found[0].rstrip()}\n{indent}```\n"


class DocstringsAsMarkdown(griffe.Extension):
    """Rewrites each docstring once, when griffe has found it."""

    def on_instance(self, *, obj: griffe.Object, **_more: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
