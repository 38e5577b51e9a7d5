"""Imported by the fork server when it starts, and by nobody else: what is in memory here is in memory of every worker.

The server ends with the process that started it. Otherwise it would live as long as one of its forks does, and these,
where they are stopped or stuck, as long as it does.
"""

from __future__ import annotations

import decentral.launch.worker  # noqa: F401
from decentral.orphans import follow_parent

follow_parent()
