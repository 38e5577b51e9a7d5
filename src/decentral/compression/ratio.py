"""The share of the coordinates that is sent, and how it gets there."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decentral.compression.adaptation import CANDIDATES, Adapt, Solver, check_candidates
from decentral.compression.compressor import Compressor
from decentral.settings import setting

if TYPE_CHECKING:
    import torch

    from decentral.cluster.links import Prices

_MOST_COMPARED = 10_000
_LONGEST = 1 << 20
"""Of which a single number is next to nothing."""


@dataclass
class Ratio(Compressor):
    """Sends k of the P coordinates in step t, at least one:

        k = max(1, floor(P keep_t)),   keep_t = 1 - (1 - keep) t / T  for t < T,  then keep

    with T = warmup_epochs in whole steps: the first step of a warm-up sends everything.

    keep           the share of the coordinates that is sent
    warmup_epochs  for so many epochs it falls to that, from 1
    adapt          none, or how keep is decided after the warm-up, and again when the network or the gain changes (see
                   `training/adaptive.py`): knee, of communication time and of 1 / gain; throughput, the least time of a
                   step over its gain
    candidates     ratios whose gain is measured
    explore_steps  for so many steps each
    solver         grid; or nsga2 as in the authors' code, which needs pymoo and is less exact (`adaptation.front`)
    grid           how many ratios between the least and the largest of them are compared; 0: the candidates alone
    """

    name: str
    error_feedback: bool = True
    keep: float = setting(0.1, above=0, at_most=1, hint="such as 0.1 or 0.01")
    warmup_epochs: float = setting(0.0, at_least=0)
    adapt: Adapt = field(default=Adapt.none, metadata={"older": Adapt.none})
    candidates: list[float] = field(
        default_factory=lambda: list(CANDIDATES), metadata={"older": list(CANDIDATES), "when": "adapts"}
    )
    explore_steps: int = setting(10, at_least=1, older=10, when="adapts")
    solver: Solver = field(default=Solver.grid, metadata={"older": Solver.grid, "when": "adapts"})
    grid: int = setting(100, at_least=0, at_most=_MOST_COMPARED, older=100, when="adapts")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_candidates(self.candidates)
        self.solver.check()

    @property
    def adapts(self) -> bool:
        """Whether `keep` is decided on the way."""
        return self.adapt is not Adapt.none

    @property
    def warmup_steps(self) -> int:
        """T."""
        return int(self.warmup_epochs * self.steps_per_epoch)

    @property
    def smallest_row(self) -> int:
        """See `Compressor.smallest_row`: k is keep P there, and a thousandth of the row at least, or one number."""
        return min(_LONGEST, math.ceil(max(1, math.ceil(1000 * self.keep)) / self.keep))

    def ratio(self, step: int) -> float:
        """keep_t of step t = 0, 1, ..."""
        steps = self.warmup_steps
        return 1 - (1 - self.keep) * step / steps if step < steps else self.keep

    def count(self, num_coordinates: int, step: int) -> int:
        """How many of so many coordinates are sent in this step."""
        return max(1, int(num_coordinates * self.ratio(step)))

    def send_share(self, keep: float) -> None:
        """From now on, and once a warm-up is over, send this share."""
        self.keep = keep

    @abstractmethod
    def planned_s(self, prices: Prices, step: int, dtype: torch.dtype) -> float:
        """How many seconds `combine` takes in this step by what is known of the links now, for workers who begin
        together with rows of this type."""
