"""What a chat memory may be made with.

Owns the checks of its arguments. Does not own what they do (``memory.py``).
"""

from __future__ import annotations

from typing import Final

from llama_index.core.memory import InsertMethod

from vmem_core import InvalidRequestError
from vmem_llamaindex.memory_learning import make_policy

_MODES: Final = ("after_turn", "manual", "off")


def check_names(trusted_tools: object) -> tuple[str, ...]:
    """The names of tools, sorted.

    Raises:
        InvalidRequestError: For anything else.
    """
    if not isinstance(trusted_tools, list | tuple | set | frozenset):
        raise InvalidRequestError("must be a set of tool names", path="trusted_tools")
    make_policy(trusted_tools)
    return tuple(sorted(trusted_tools))


def check_method(insert_method: object) -> InsertMethod:
    """Where records are shown.

    Raises:
        InvalidRequestError: For anything else.
    """
    try:
        return InsertMethod(insert_method)
    except ValueError:
        raise InvalidRequestError('must be "system" or "user"', path="insert_method") from None


def check_settings(
    extract: object, on_error: object, session_id: object, limit: object, flush_size: object, ratio: object
) -> None:
    """Refuse a setting that means nothing.

    Raises:
        InvalidRequestError: For anything else.
    """
    if extract not in _MODES:
        raise InvalidRequestError('must be "after_turn", "manual" or "off"', path="extract")
    if on_error not in ("log", "raise"):
        raise InvalidRequestError('must be "log" or "raise"', path="on_error")
    if session_id is not None and (not isinstance(session_id, str) or not session_id.strip()):
        raise InvalidRequestError("must be a string that is not blank", path="session_id")
    for name, value in (("token_limit", limit), ("token_flush_size", flush_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidRequestError("must be an integer of 1 or more", path=name)
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 < ratio <= 1:
        raise InvalidRequestError("must be a number from 0 to 1", path="chat_history_token_ratio")
