"""The one place that takes steps: an algorithm on a network, with an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from decentral.algorithms.algorithm import Algorithm, Oracle
    from decentral.cluster.timeline import Lateness
    from decentral.network.network import Network
    from decentral.network.traffic import Traffic
    from decentral.training.adaptive import Probe
    from decentral.training.attendance import Attendance


class Stepper:
    """s^{t+1} = algorithm.step(s^t, oracle, net, t) for t = 0, 1, ..., from the models x [k, P] of the k local workers.

    Training runs, throughput studies, ensembles, consensus and benchmarks all take their steps here, inside of
    `torch.no_grad()`. With several processes all of them step together.
    """

    def __init__(self, algorithm: Algorithm, net: Network, oracle: Oracle, x: Tensor) -> None:
        """`algorithm` has its local rule already (`Algorithm.using`); x is the algorithm's from now on."""
        self.algorithm, self.net, self.oracle = algorithm, net, oracle
        self.state: Any = algorithm.init(x, net)
        self.t = 0
        """How many steps have been taken."""
        self.attendance: Attendance | None = None
        """Who takes part in which steps; None: everybody in all of them."""
        self.probe: Probe | None = None
        """What measures the network on the way; None: nobody does."""
        self.timekeeper: Stepper | None = None
        """What takes the same steps without training, for the time and the bytes of a model of another size; None: they
        are those of the model that is trained."""

    def step(self) -> None:
        """Take a step."""
        self.before_step()
        if self.timekeeper is not None:
            self.timekeeper.step()
        rule = self.algorithm if self.attendance is None else self.attendance
        self.state = rule.step(self.state, self.oracle, self.net, self.t)
        self.t += 1

    def before_step(self) -> None:
        """Links are as they are now, and are looked at if it is time to."""
        if self.net.traffic.clock is not None:
            self.net.traffic.clock.begin_step(self.t)
        if self.probe is not None:
            self.probe.look(self.t)

    def may_go_on_to(self, step: int) -> None:
        """Nobody goes on before the next `step`."""

    def close(self) -> None:
        """Nothing is held."""

    def flush(self) -> None:
        """Bring home what is on its way, so that the state is complete. All processes call this after the same step."""
        self.state = self.algorithm.flush(self.state, self.net)

    def on_the_way(self) -> dict[str, Any]:
        """What a checkpoint has to know beside the state."""
        parts = {"probe": self.probe, "attendance": self.attendance}
        return {name: part.state() for name, part in parts.items() if part is not None}

    def go_on_from(self, step: int, part: dict[str, Any]) -> None:
        """Go on after `step` steps: the state is there already."""
        while self.timekeeper is not None and self.timekeeper.t < step:
            self.timekeeper.step()
        self.t = step
        if self.probe is not None:
            self.probe.load_state(part["probe"])
        if self.attendance is not None:
            self.attendance.load_state(part["attendance"])

    @property
    def traffic(self) -> Traffic:
        """What has been sent, and simulated time."""
        return (self.timekeeper or self).net.traffic

    @property
    def simulated_s(self) -> float | None:
        """When the slowest worker has got so far, in a virtual cluster."""
        return None if self.traffic.clock is None else self.traffic.clock.latest_s

    def accounts(self) -> dict[str, np.ndarray]:
        """What each worker has spent its simulated time on, in seconds: float64 [n] each; {} without a cluster."""
        return {} if self.traffic.clock is None else self.traffic.clock.accounts()

    def lateness(self) -> Lateness | None:
        """Nobody is late where all step together."""
        return None

    def choices(self) -> dict[str, Any]:
        """What was decided on the way, for the records: {} where nothing was.

        collectives  name -> [how often all carried it out, the simulated seconds that this took them]; in real time,
                     where the network is measured: [how often, seconds predicted, seconds taken in this process]
        measured, probes    see `Probe.facts`
        """
        found = {} if self.probe is None else self.probe.facts()
        clock = self.traffic.clock
        used = self.traffic.carried if clock is None else clock.used if clock.chooses else {}
        if not used:
            return found
        rounded = {name: [int(times), *(round(each, 9) for each in spent)] for name, (times, *spent) in used.items()}
        return found | {"collectives": rounded}

    @property
    def waited_s(self) -> float:
        """How long this process has waited for messages so far, in seconds."""
        return self.net.waited_s

    @property
    def models(self) -> Tensor:
        """The models x_i [k, P] of the local workers."""
        return self.algorithm.models(self.state)
