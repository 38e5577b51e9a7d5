"""The cost of averaging a gradient, dense or compressed, by the formulas of the collectives.

log2 is a real number here, as in the flexible communication paper; elsewhere (`cluster.links.whole_phases`) it is
rounded up, as the algorithms do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from decentral.cluster.links import ALL_GATHER, BROADCAST, RABENSEIFNER, RING, STAR, TREE, Collective
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Measurement
from decentral.measurements.values import Labels, Meaning, Value
from decentral.settings import setting

FACTOR, SECONDS = "factor", "seconds of an exchange"
_DENSE, _HALF = 4.0, 2.0
"""Bytes of a number in float32, and in bfloat16."""


SCHEMES: dict[str, list[tuple[Collective, float, float]]] = {
    "star": [(STAR, _DENSE, 0)],
    "ring": [(RING, _DENSE, 0)],
    "tree": [(TREE, _DENSE, 0)],
    "rabenseifner": [(RABENSEIFNER, _DENSE, 0)],
    "allgather": [(ALL_GATHER, _DENSE, 0)],
    "broadcast": [(BROADCAST, _DENSE, 0)],
    "bf16_ring": [(RING, _HALF, 0)],
    "bf16_tree": [(TREE, _HALF, 0)],
    "bf16_rabenseifner": [(RABENSEIFNER, _HALF, 0)],
    "artopk_ring": [(BROADCAST, 0, _DENSE), (RING, 0, _DENSE)],
    "artopk_tree": [(BROADCAST, 0, _DENSE), (TREE, 0, _DENSE)],
    "topk_allgather": [(ALL_GATHER, 0, 2 * _DENSE)],
}
"""Ways to average n rows of P parameters: their collectives, each with its bytes per parameter and per kept parameter.
AR-Topk: a broadcast of one worker's indices, then an all-reduce of values. AG-Topk: an all-gather of values and
indices. `allgather` and `broadcast` are the paper's two other operations."""


def seconds(scheme: str, n: int, parameters: float, keep: float, alpha: float, beta: float) -> float:
    """Return the seconds of an exchange of n rows of which the share `keep` is sent; alpha in seconds, beta in seconds
    per byte."""
    parts = SCHEMES[scheme]
    sizes = [(dense or kept * keep) * parameters for _, dense, kept in parts]
    return sum(each.seconds(n, size, alpha, beta, math.log2) for (each, _, _), size in zip(parts, sizes, strict=True))


PARTS = ("latency", "volume")
"""Parts of `term`: the factor of alpha, and the factor of beta times the bytes of a dense row (or of its kept part)."""

CROSSOVERS = {
    "c1": ("artopk_ring", "artopk_tree"),
    "c2": ("artopk_ring", "topk_allgather"),
    "c3": ("artopk_tree", "topk_allgather"),
}
"""The two schemes cost the same where alpha / beta is this many times the bytes of the kept values."""


def term(scheme: str, part: str, n: int) -> float:
    """Return the factor of alpha (`latency`), or that of beta times the sent bytes (`volume`; M, compressed: Mc)."""
    return seconds(scheme, n, 1 / _DENSE, 1.0, float(part == "latency"), float(part == "volume"))


def crossover(first: str, second: str, n: int) -> float:
    """Return alpha / beta over the bytes of the kept values at which both cost the same; below it the first is
    cheaper."""
    fewer = term(second, "volume", n) - term(first, "volume", n)
    return fewer / (term(first, "latency", n) - term(second, "latency", n))


@dataclass
class CollectiveFacts(Measurement):
    """Factors of latency and bandwidth of a scheme, or the ratio at a crossover, for some numbers of workers.

    scheme        key of SCHEMES or CROSSOVERS
    num_workers   numbers of workers, from 4: with fewer, a tree is a ring
    """

    name: str = "collective_facts"
    scheme: str = ""
    num_workers: list[int] = setting([], at_least=4, hint="below 4, a tree equals a ring")

    folder: ClassVar[str] = "collective_facts"
    row_labels: ClassVar[tuple[str, ...]] = ("method",)
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "num_workers"})

    def __post_init__(self) -> None:
        known = [*SCHEMES, *CROSSOVERS]
        if self.scheme and self.scheme not in known:
            raise ConfigError(f"scheme={self.scheme} is unknown.{suggest(self.scheme, known)}")

    def parameters(self) -> dict[str, Any]:
        """Return the scheme and the numbers of workers."""
        return {"schemes": [self.scheme], "sizes": self.num_workers}

    def parts(self) -> list[dict[str, Any]]:
        """Return a part for each factor and number of workers."""
        parts = [""] if self.scheme in CROSSOVERS else PARTS
        return [{"part": part, "num_workers": n} for part in parts for n in self.num_workers]

    def line(self, part: str, num_workers: int) -> dict[str, Any]:
        """Return the factor."""
        if self.scheme in CROSSOVERS:
            return {"value": crossover(*CROSSOVERS[self.scheme], num_workers)}
        return {"value": term(self.scheme, part, num_workers)}

    def cells(self) -> list[Labels]:
        """Return a cell for each part."""
        return [self.labels | key for key in self.parts()]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the factor for each number of workers."""
        for line in self.found():
            if all(labels[key] == line[key] for key in ("part", "num_workers")):
                yield Value(labels, float(line["value"]), FACTOR, 0)


@dataclass
class CollectiveMap(Measurement):
    """Seconds of an exchange of a gradient by a scheme, at each point of a grid. A line has nested lists
    [n][keep][latency][bandwidth].

    scheme          key of SCHEMES
    num_parameters  parameters of the model
    num_workers, keep, latency_ms, gbps   the grid: every combination; `keep` is the share of the coordinates that the
                    schemes with `topk` send
    """

    name: str = "collective_map"
    scheme: str = ""
    num_parameters: int = setting(25_557_032, at_least=1)
    num_workers: list[int] = setting([], at_least=2)
    keep: list[float] = setting([], above=0, at_most=1)
    latency_ms: list[float] = setting([], above=0)
    gbps: list[float] = setting([], above=0)

    folder: ClassVar[str] = "collective_map"
    row_labels: ClassVar[tuple[str, ...]] = ("method",)
    decides: ClassVar[frozenset[str]] = frozenset({"lr", "num_workers"})
    meanings: ClassVar[dict[str, Meaning]] = {SECONDS: Meaning(False, "s")}

    def __post_init__(self) -> None:
        if self.scheme and self.scheme not in SCHEMES:
            raise ConfigError(f"scheme={self.scheme} is unknown.{suggest(self.scheme, SCHEMES)}")
        empty = [key for key, numbers in self._places().items() if not numbers]
        if empty:
            raise ConfigError(f"{empty[0]}=[] is empty: give numbers for the map.")

    def _places(self) -> dict[str, list[Any]]:
        return {key: getattr(self, key) for key in ("num_workers", "keep", "latency_ms", "gbps")}

    def parameters(self) -> dict[str, Any]:
        """Return the scheme and the grid."""
        places = {"keep": self.keep, "gbps": self.gbps, "latency_ms": self.latency_ms}
        return {"scheme": self.scheme, "size": self.num_parameters, "sizes": self.num_workers, **places}

    def line(self) -> dict[str, Any]:
        """Return the seconds at all points."""
        size, links = self.num_parameters, [[(1e-3 * ms, 8e-9 / gbps) for gbps in self.gbps] for ms in self.latency_ms]
        return {
            "seconds": [
                [[[seconds(self.scheme, n, size, keep, *link) for link in row] for row in links] for keep in self.keep]
                for n in self.num_workers
            ]
        }

    def cells(self) -> list[Labels]:
        """Return one cell; its values have the grid's coordinates as labels."""
        return [self.labels | dict.fromkeys(self._places(), "")]

    def values(self, labels: Labels) -> Iterator[Value]:
        """Return the seconds at each point."""
        (line,) = self.found()
        flat = [value for n in line["seconds"] for keep in n for latency in keep for value in latency]
        places = self._places()
        for place, took in zip(product(*places.values()), flat, strict=True):
            yield Value(labels | dict(zip(places, place, strict=True)), took, SECONDS, 0)
