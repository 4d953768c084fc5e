"""The contract of a store as plain async tests, for the stores of this library and for anyone's own.

In a test module of your own, with pytest-asyncio in auto mode:

    from store_suite import *

    @pytest.fixture
    async def store(clock):
        store = MyStore(clock=clock)  # the time is what the ``clock`` fixture says
        yield store
        await store.close()

The other fixtures that the tests ask for are in ``store_suite/fixtures.py``: import them in your ``conftest.py``.
A store passes if every test does; what callers see is then the same as on the stores of this library.
"""

from store_suite import (
    adding,
    diagnosing,
    embedders,
    embedding,
    entering,
    exporting,
    forgetting,
    generations,
    importing,
    knowing_then,
    pruning,
    racing,
    reading,
    recalling,
    reembedding,
    replaying,
    revising,
)

PARTS = (
    adding,
    revising,
    replaying,
    forgetting,
    reading,
    recalling,
    knowing_then,
    embedders,
    embedding,
    generations,
    reembedding,
    entering,
    racing,
    importing,
    diagnosing,
    pruning,
    exporting,
)
_FOUND = [(name, test) for part in PARTS for name, test in vars(part).items() if name.startswith("test_")]
if len({name for name, _ in _FOUND}) != len(_FOUND):
    raise ImportError("two tests of the suite share a name, so that one of them would never run")
globals().update(_FOUND)

__all__ = [name for name, _ in _FOUND]
