"""Quantities of a graph for `measurement: facts`: the share of other workers' values that a curious worker learns."""

from __future__ import annotations

from decentral.plugins.adversaries.knowledge import from_gossip, from_relaying, share_given_away
from decentral.topology.rounds import Rounds


def gossip_gives_away(rounds: Rounds) -> float:
    """Return the share that one worker reconstructs from gossip averaging, averaged over the workers."""
    return share_given_away(from_gossip(rounds, _single_workers(rounds)))


def relaying_gives_away(rounds: Rounds) -> float:
    """Return the share that one worker reconstructs from RelaySum, averaged over the workers."""
    return share_given_away(from_relaying(rounds, _single_workers(rounds)))


def _single_workers(rounds: Rounds) -> list[set[int]]:
    return [{worker} for worker in range(rounds.num_workers)]
