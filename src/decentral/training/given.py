"""Workers that go on by themselves when a file says it, instead of a clock."""

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
    from decentral.training.oracle import GradientOracle


class GivenStepper(AsynchronousStepper):
    """A step is an event, see `algorithms.given_events`."""

    timeline: Any

    def __init__(
        self,
        algorithm: AsynchronousAlgorithm,
        net: Network,
        oracle: GradientOracle,
        x: Tensor,
        team: Team,
        events: Sequence[Event],
    ) -> None:
        """`algorithm` has its local rule already; x [n, P] is the algorithm's from now on."""
        self.events = events
        no_machines: Any = None
        super().__init__(algorithm, net, oracle, x, team, no_machines, x[0].nbytes)
        self.tells_time = False

    def accounts(self) -> dict[str, np.ndarray]:
        """Nothing is simulated."""
        return {}

    def lateness(self) -> None:
        """Nobody counts who is late."""

    def _advance(self) -> None:
        self.timeline.run(self.t)

    def _begin(self, rows: Any) -> Any:
        programs = [self.algorithm.program(i, self.team) for i in range(self.net.n)]
        return GivenEvents(self.events, programs, self.algorithm.place(self.team), self.bytes_per_row, rows)
