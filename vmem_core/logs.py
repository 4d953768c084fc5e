"""The library's logger: ``vmem_core``, silent until the host gives it a handler.

Owns the logger. No record of it holds memory text: counts, ids and class names only.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


@cache
def log() -> logging.Logger:
    """The logger. It is made when first needed: importing the library loads no logging."""
    import logging

    logger = logging.getLogger("vmem_core")
    logger.addHandler(logging.NullHandler())
    return logger
