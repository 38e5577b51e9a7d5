"""The stepper: runs an algorithm on a network, with an oracle."""

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

    Training runs, throughput studies, ensembles, consensus and benchmarks all take their steps here, within
    `torch.no_grad()`. Several processes step together.
    """

    def __init__(self, algorithm: Algorithm, net: Network, oracle: Oracle, x: Tensor) -> None:
        """Create the stepper; `algorithm` is already bound (`Algorithm.bind`), and x is donated."""
        self.algorithm, self.net, self.oracle = algorithm, net, oracle
        self.state: Any = algorithm.init(x, net)
        self.t = 0
        """Number of steps taken."""
        self.attendance: Attendance | None = None
        """The attendance of workers; None: all workers attend all steps."""
        self.probe: Probe | None = None
        """The probe of the network; None: no measurements."""
        self.timekeeper: Stepper | None = None
        """A stepper that takes the same steps without training, for time and bytes of a model of another size; None:
        those of the trained model count."""

    def step(self) -> None:
        """Take a step."""
        self.before_step()
        if self.timekeeper is not None:
            self.timekeeper.step()
        rule = self.algorithm if self.attendance is None else self.attendance
        self.state = rule.step(self.state, self.oracle, self.net, self.t)
        self.t += 1

    def before_step(self) -> None:
        """Update the current links, and probe them if due."""
        if self.net.traffic.clock is not None:
            self.net.traffic.clock.begin_step(self.t)
        if self.probe is not None:
            self.probe.look(self.t)

    def may_go_on_to(self, step: int) -> None:
        """Do nothing: synchronous workers advance in `step` only."""

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def flush(self) -> None:
        """Deliver everything in flight, so that the state is complete. All processes call this after the same step."""
        self.state = self.algorithm.flush(self.state, self.net)

    def on_the_way(self) -> dict[str, Any]:
        """Return the checkpoint content besides the state."""
        parts = {"probe": self.probe, "attendance": self.attendance}
        return {name: part.state() for name, part in parts.items() if part is not None}

    def go_on_from(self, step: int, part: dict[str, Any]) -> None:
        """Resume after `step` steps: the state is already restored."""
        while self.timekeeper is not None and self.timekeeper.t < step:
            self.timekeeper.step()
        self.t = step
        if self.probe is not None:
            self.probe.load_state(part["probe"])
        if self.attendance is not None:
            self.attendance.load_state(part["attendance"])

    @property
    def traffic(self) -> Traffic:
        """The traffic sent, with simulated time."""
        return (self.timekeeper or self).net.traffic

    @property
    def simulated_s(self) -> float | None:
        """The simulated time of the slowest worker, in a virtual cluster."""
        return None if self.traffic.clock is None else self.traffic.clock.latest_s

    def accounts(self) -> dict[str, np.ndarray]:
        """Return each worker's simulated time per activity, in seconds: float64 [n] each; {} without a cluster."""
        return {} if self.traffic.clock is None else self.traffic.clock.accounts()

    def lateness(self) -> Lateness | None:
        """Return None: synchronous workers are never late."""
        return None

    def choices(self) -> dict[str, Any]:
        """Return the decisions during the run, for the records: {} if there are none.

        collectives  name -> [count, simulated seconds]; in real time, with a measured network: [count, predicted
                     seconds, seconds taken in this process]
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
        """The time this process has waited for messages so far, in seconds."""
        return self.net.waited_s

    @property
    def models(self) -> Tensor:
        """Return the models x_i [k, P] of the local workers."""
        return self.algorithm.models(self.state)
