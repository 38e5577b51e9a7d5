"""The interface of asynchronous methods: a program for each worker instead of synchronous steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.features import Feature
from decentral.algorithms.given_events import read_events
from decentral.cluster.operations import Gradient, Local
from decentral.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from decentral.algorithms.algorithm import Oracle
    from decentral.algorithms.given_events import Event
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network
    from decentral.topology.rounds import Rounds

Place = TypeVar("Place")


@dataclass(frozen=True, eq=False)
class Team:
    """The facts that a worker's program may use: the workers and the length of the run."""

    rounds: Rounds
    """The topology's communication rounds."""
    num_steps: int
    """Gradients per worker; n times as many in total, even if workers are not equally fast."""
    seed: int
    """Seed of all random draws."""
    gradient_s: float
    """Mean time of a gradient, in simulated seconds: the unit of time of methods that have one."""
    each_s: Sequence[float] = ()
    """The same for each worker [n]."""
    places: list[Any] = field(default_factory=list)
    """The shared places that `meeting_place` has created."""

    @property
    def num_workers(self) -> int:
        """Return n."""
        return self.rounds.num_workers

    def meeting_place(self, made: Callable[[], Place]) -> Place:
        """Return the place that all workers of the team share, created by the first call."""
        if not self.places:
            self.places.append(made())
        place: Place = self.places[0]
        return place


class AsynchronousAlgorithm(Algorithm):
    """A method written as the operations of each worker (`program`), close to the paper's pseudocode.

    In a virtual cluster simulated time determines which workers interact; between processes real time does. In both
    cases the effect of an operation is a method that updates the rows of the given workers in place.
    Without a cluster all workers are equally fast and messages take no time.
    """

    supports = Algorithm.supports - {
        Feature.synchrony,
        Feature.message_loss,
        Feature.absence,
        Feature.own_rates,
        Feature.plain_sgd,
    }
    free_running: ClassVar[bool] = False
    """True if fast workers take more gradients; False if all take equally many."""
    meets: ClassVar[tuple[str, ...]] = ("average",)
    """The events with others that a file of events may contain: average, or outer, deliver and take."""

    def given_events(self, num_workers: int) -> list[Event]:
        """Return the events given by a file; [] if time determines them."""
        name = getattr(self, "events", None)
        return [] if name is None else read_events(name, num_workers, self.meets)

    @abstractmethod
    def place(self, team: Team) -> Any:
        """Return the place that the programs of all workers of a team share: `Groups`, `Pairs`, `Slots` or
        `Server`."""

    @abstractmethod
    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield the operations of worker i in order."""

    def step(self, s: Any, oracle: Oracle, net: Network, t: int) -> Any:
        """Raise ConfigError: there are no synchronous steps."""
        raise ConfigError(
            f"algo={self.name} is asynchronous, without common steps: use decentral-run, in a virtual cluster such as "
            "cluster=even, or with several processes."
        )

    def update(self, s: Any, i: int, g: Tensor, t: int) -> None:
        """Compute x_i <- x_i + u_i in place, for the gradient g [P] of the worker's own step t."""
        row = slice(i, i + 1)
        before, opt = s.x[row], tuple([buffer[row] for buffer in s.opt])
        x, new = self.local.adapt(before, g[None], opt, t)
        for old, value in zip((before, *opt), (x, *new), strict=True):
            if value is not old and value.data_ptr() != old.data_ptr():
                old.copy_(value)


def in_rounds(algorithm: type[Algorithm]) -> bool:
    """Return whether it can run in synchronous steps of all workers."""
    return algorithm.step is not AsynchronousAlgorithm.step


__all__ = ["AsynchronousAlgorithm", "Gradient", "Local", "Team", "in_rounds"]
