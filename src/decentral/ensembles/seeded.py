"""Jobs that do the same for each of some seeds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from decentral.ensembles.job import Computation
from decentral.store.lines import LineFile


@dataclass(frozen=True)
class SeededComputation(Computation):
    """A line for each seed, with the seed in it; seeds that have one are not computed again."""

    seeds: tuple[int, ...] = ()

    @abstractmethod
    def line(self, seed: int) -> dict[str, Any]:
        """What comes out for a seed, beside the seed."""

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """One seed after the other."""
        known = {line["seed"] for line in lines.known}
        for number, seed in enumerate(self.seeds):
            if seed in known:
                continue
            if stop():
                return False
            lines.append({"seed": seed, **self.line(seed)})
            show((number + 1) / len(self.seeds), f"seed {seed}")
        return True
