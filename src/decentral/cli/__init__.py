"""The console commands: compose with Hydra, refuse, help, sweep."""

from __future__ import annotations

import os
import sys

from decentral.host.interrupt import end_at_once
from decentral.terminal.console import INTERRUPTED

_program = os.path.basename(sys.argv[0]) if sys.argv else ""
if _program.startswith("decentral-") or _program == "-m":  # a command, whose imports take long: see `guarded`
    end_at_once(f"{_program if _program != '-m' else 'decentral'}: interrupted.\n", INTERRUPTED)
