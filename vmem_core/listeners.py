"""What happens after a forget: the host's listeners are told.

Owns the order of the calls and what they add up to. A listener that fails is logged, without text; the forget
stands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vmem_core.errors import InvalidRequestError
from vmem_core.logs import log
from vmem_core.models import call
from vmem_core.plan import Forgotten
from vmem_core.records import Scope
from vmem_core.results import ForgetEvent, Redaction

Listener = Callable[[ForgetEvent], Awaitable[None] | None]


def check_listeners(listeners: object) -> tuple[Listener, ...]:
    """One listener, or a list or tuple of them.

    Raises:
        InvalidRequestError: If one is not callable.
    """
    given = (listeners,) if callable(listeners) else listeners
    if not isinstance(given, list | tuple) or not all(callable(one) for one in given):
        raise InvalidRequestError("must be callables that take a ForgetEvent", path="on_forget")
    return tuple(given)


async def tell(
    listeners: Sequence[Listener], scope: Scope, operation_id: str, forgotten: Sequence[Forgotten]
) -> Redaction:
    """Call every listener for every record that the scope had, in order.

    Returns:
        ``complete`` if all succeeded, ``failed`` if one raised, ``none`` if there was nothing to tell or nobody.
    """
    known = [one for one in forgotten if one.known]
    if not listeners or not known:
        return "none"
    failed = False
    for one in known:
        event = ForgetEvent(scope, one.record_id, one.revisions, operation_id, one.already)
        for listener in listeners:
            failed = not await _succeeds(listener, event) or failed
    return "failed" if failed else "complete"


async def _succeeds(listener: Listener, event: ForgetEvent) -> bool:
    import asyncio

    try:
        await call(listener, event)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the caller is cancelled, not something inside the listener
        log().error("an on_forget listener was cancelled; call forget again to run it again")
        return False
    except Exception as error:  # noqa: BLE001 - whatever a host's code raises, the forget stands
        # Only the class: the listener's message may quote what it was to redact.
        log().error("an on_forget listener failed with %s; call forget again to run it again", type(error).__name__)
        return False
    return True
