"""The first module that a fork server imports: it makes the server end with the process that started it.

Otherwise it would live as long as one of its forks does, and these, where they are stopped or stuck, as long as it
does.
"""

from __future__ import annotations

from decentral.host.processes import follow_parent

follow_parent()
