"""The names by which topologies of one's own from before know `rounds`."""

from __future__ import annotations

from decentral.topology.rounds import Rounds as Schedule
from decentral.topology.rounds import Split

__all__ = ["Schedule", "Split"]
