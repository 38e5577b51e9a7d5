"""Asynchronous workers driven by events from a file instead of a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decentral.algorithms.given_events import Event, GivenEvents
from decentral.training.virtual import AsynchronousStepper

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Team
    from decentral.network.network import Network
    from decentral.training.ahead import AheadOracle


class GivenStepper(AsynchronousStepper):
    """A step is an event, see `algorithms.given_events`."""

    timeline: Any

    def __init__(
        self,
        algorithm: AsynchronousAlgorithm,
        net: Network,
        oracle: AheadOracle,
        x: Tensor,
        team: Team,
        events: Sequence[Event],
    ) -> None:
        """Create the stepper; `algorithm` is bound, and x [n, P] is donated."""
        self.events = events
        no_machines: Any = None
        super().__init__(algorithm, net, oracle, x, team, no_machines, x[0].nbytes)
        self.tells_time = False

    def accounts(self) -> dict[str, np.ndarray]:
        """Return {}: there is no simulated time."""
        return {}

    def lateness(self) -> None:
        """Return None: lateness is not recorded."""

    def _run_to(self, t: int) -> None:
        self.timeline.run(t)

    def _begin(self, rows: Any) -> Any:
        programs = [self.algorithm.program(i, self.team) for i in range(self.net.n)]
        return GivenEvents(self.events, programs, self.algorithm.place(self.team), self.bytes_per_row, rows)
