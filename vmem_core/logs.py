"""The library's logger: ``vmem_core``, silent until the host gives it a handler.

Owns the logger. No record of it holds memory text: counts, ids and class names only.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("vmem_core")
LOG.addHandler(logging.NullHandler())
