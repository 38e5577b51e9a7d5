"""The stepper runs an algorithm on a network, with an oracle; extensions act before and after its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from decentral.algorithms.algorithm import Algorithm, Oracle
    from decentral.cluster.timeline import Lateness
    from decentral.network.network import Network
    from decentral.network.traffic import Traffic
    from decentral.training.attendance import Attendance


class Extension:
    """A part of a run besides its algorithm. A method that is not overridden does nothing.

    `Stepper.extensions` lists those of a run, in the order in which they are called.
    """

    traffic: Traffic | None = None
    """The traffic that counts instead of the network's."""

    def check(self, stepper: Stepper) -> None:
        """Raise ConfigError before the first step if the run is impossible."""

    def before_step(self, stepper: Stepper) -> None:
        """Act before step `stepper.t`."""

    def after_step(self, stepper: Stepper) -> None:
        """Act after step `stepper.t - 1`."""

    def state(self) -> dict[str, Any]:
        """Return the entries of a checkpoint."""
        return {}

    def load_state(self, part: dict[str, Any], step: int) -> None:
        """Restore the result of `state` after `step` steps; `part` has the entries of all extensions."""

    def rows(self) -> dict[str, Any]:
        """Return entries of status.json."""
        return {}

    def store(self, directory: Path, stepper: Stepper) -> None:
        """Write files at the end of the run, on its leader."""


def collective_rows(used: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the entry of status.json on collectives: name -> [count, simulated seconds]; in real time, with a measured
    network: [count, predicted seconds, seconds taken in this process]."""
    rounded = {name: [int(times), *(round(each, 9) for each in spent)] for name, (times, *spent) in used.items()}
    return {"collectives": rounded} if rounded else {}


class Stepper:
    """s^{t+1} = algorithm.step(s^t, oracle, net, t) for t = 0, 1, ..., from the models x [k, P] of the k local workers.

    Training runs, throughput studies, ensembles, consensus and benchmarks all take their steps here, within
    `torch.no_grad()`. Several processes step together.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        net: Network,
        oracle: Oracle,
        x: Tensor,
        extensions: Iterable[Extension] = (),
        attendance: Attendance | None = None,
    ) -> None:
        """Create the stepper; `algorithm` is already bound (`Algorithm.bind`), and x is donated.

        `attendance`, of workers that may be absent, comes after the other extensions. Raises ConfigError if an
        extension cannot be used.
        """
        if attendance is not None:
            algorithm = attendance.algorithm
        self.algorithm, self.net, self.oracle = algorithm, net, oracle
        self.state: Any = algorithm.init(x, net)
        self.t = 0
        """Number of steps taken."""
        self.idle = False
        """True if no worker takes the current step."""
        self.traffic = net.traffic
        """The traffic sent, with simulated time: that of a model of another size if the cluster describes one."""
        self.attendance: Any = attendance
        """The attendance of workers; None: all workers attend all steps."""
        self.extensions: list[Extension] = []
        for extension in (*extensions, *([] if attendance is None else [attendance])):
            self.extend(extension)

    def extend(self, extension: Extension) -> None:
        """Append an extension. Raises ConfigError if it cannot be used."""
        extension.check(self)
        self.extensions.append(extension)
        self.traffic = extension.traffic or self.traffic

    def step(self) -> None:
        """Take a step."""
        for extension in self.extensions:
            extension.before_step(self)
        if not self.idle:
            self._advance()
        self.t += 1
        for extension in self.extensions:
            extension.after_step(self)

    def _advance(self) -> None:
        """Carry out step t."""
        self.state = self.algorithm.step(self.state, self.oracle, self.net, self.t)

    def may_go_on_to(self, step: int) -> None:
        """Do nothing: synchronous workers advance in `step` only."""

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def flush(self) -> None:
        """Deliver everything in flight, so that the state is complete. All processes call this after the same step."""
        self.state = self.algorithm.flush(self.state, self.net)

    def on_the_way(self) -> dict[str, Any]:
        """Return the checkpoint content besides the state."""
        return {key: value for extension in self.extensions for key, value in extension.state().items()}

    def go_on_from(self, step: int, part: dict[str, Any]) -> None:
        """Resume after `step` steps: the state is already restored."""
        self.t = step
        for extension in self.extensions:
            extension.load_state(part, step)

    def facts(self) -> dict[str, Any]:
        """Return the entries of all extensions for status.json."""
        return {key: value for extension in self.extensions for key, value in extension.rows().items()}

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

    @property
    def waited_s(self) -> float:
        """The time this process has waited for messages so far, in seconds."""
        return self.net.waited_s

    @property
    def models(self) -> Tensor:
        """Return the models x_i [k, P] of the local workers."""
        return self.algorithm.models(self.state)
