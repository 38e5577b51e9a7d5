"""Privacy of a graph, as `decentral-run --help topology=NAME` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from decentral.plugins.adversaries.knowledge import Knowledge, from_gossip, from_relaying, recovered
from decentral.topology.requirements import is_tree
from decentral.topology.rounds import Rounds

_TOLD_UP_TO = 64


def privacy(rounds: Rounds) -> str:
    """Return what a graph reveals to single attackers, and the assumptions, as text for `--help`."""
    n = rounds.num_workers
    if not 1 < n <= _TOLD_UP_TO:
        return f"computed for 2 to {_TOLD_UP_TO} workers."
    singles = [{worker} for worker in range(n)]
    known = from_gossip(rounds, singles)
    relayed = f" Relaying sums instead: {_in_words(from_relaying(rounds, singles))}." if is_tree(rounds) else ""
    assumed = "gossip averaging of constant values, W known, exact numbers"
    assumed += f", the first of {rounds.num_pieces} pieces of the model" if rounds.num_pieces > 1 else ""
    assumed += "" if recovered(rounds) else ", weights exactly as their floating-point numbers"
    return (
        f"one curious worker can work out {_in_words(known)}.{relayed} Assumed: {assumed}. An upper bound on what is "
        "hidden, no guarantee of privacy."
    )


def _in_words(found: Sequence[Knowledge]) -> str:
    """Return what single attackers learn, as text for `--help`: how many others, how soon, which look alike."""
    others, last = found[0].matrix.shape[1] - 1, max(one.rounds for one in found)
    known = [len(one.reconstructed) for one in found]
    beyond = [len(set(one.reconstructed) - one.heard) for one in found]
    values = f"all {others} others" if min(known) == others else f"{_span(known, mean=True)} of the {others} others"
    hiding: dict[tuple[int, ...], list[int]] = {}
    for one in found:
        for group in one.groups:
            hiding.setdefault(tuple(group), []).extend(one.attackers)
    groups = [f"workers {_listed(group)} hide each other from {_listed(hidden)}" for group, hidden in hiding.items()]
    if len(groups) > _GROUPS_SHOWN:
        groups = [
            f"{len(groups)} groups of {_span([len(group) for group in hiding])} workers hide each other from some"
        ]
    rounds = f"within {last} {'round' if last == 1 else 'rounds'}"
    far = f"{_span(beyond)} of them not its neighbors" if any(beyond) else "all of them its neighbors"
    return "; ".join([f"the values of {values}, {far}, {rounds}", *groups])


_GROUPS_SHOWN, _WORKERS_SHOWN = 2, 8


def _span(numbers: Sequence[int], mean: bool = False) -> str:
    low, high = min(numbers), max(numbers)
    if low == high:
        return str(low)
    return f"{low} to {high}" + (f" (mean {sum(numbers) / len(numbers):.1f})" if mean else "")


def _listed(workers: Sequence[int]) -> str:
    if len(workers) > _WORKERS_SHOWN:
        return f"{len(workers)} workers"
    *first, last = map(str, workers)
    return f"{', '.join(first)} and {last}" if first else last
