"""The contract of methods in which no worker waits for all others: a program for each worker, instead of steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.given_events import read_events
from decentral.cluster.operations import Gradient, Local
from decentral.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from decentral.algorithms.algorithm import Oracle
    from decentral.algorithms.given_events import Event
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network
    from decentral.topology.rounds import Rounds

Place = TypeVar("Place")


@dataclass(frozen=True, eq=False)
class Team:
    """What the program of a worker may know: who there is, and for how long they work."""

    rounds: Rounds
    """Who talks to whom."""
    num_steps: int
    """How many gradients a worker takes; where workers are not equally fast, n times as many are taken in all."""
    seed: int
    """Of everything that is drawn."""
    gradient_s: float
    """The mean time of a gradient, in seconds of the cluster: the unit of time of methods that have one."""
    places: list[Any] = field(default_factory=list)
    """Where workers meet: what `meeting_place` has made."""

    @property
    def num_workers(self) -> int:
        """n."""
        return self.rounds.num_workers

    def meeting_place(self, made: Callable[[], Place]) -> Place:
        """The one place where all workers of the team meet, `made` by who asks first."""
        if not self.places:
            self.places.append(made())
        place: Place = self.places[0]
        return place


class AsynchronousAlgorithm(Algorithm):
    """A method that is written as what each worker does next: `program`, close to the paper's pseudo-code.

    In a virtual cluster the clock decides who meets whom; between processes the real world does. What an operation does
    to rows is a method that changes the rows of the workers it is given, in place, and is called in either case.
    Where there is no cluster all workers are equally fast and messages take no time.
    """

    asynchronous: ClassVar[bool] = True
    free_running: ClassVar[bool] = False
    """Whether a worker that is fast takes more gradients than others; if not, all take equally many."""
    survives_loss: ClassVar[bool] = False
    survives_absence: ClassVar[bool] = False
    own_rates: ClassVar[bool] = False
    as_sgd: ClassVar[dict[str, Any] | None] = None

    @classmethod
    def in_rounds(cls) -> bool:
        """Whether it can be carried out in steps that all workers take together, too."""
        return cls.step is not AsynchronousAlgorithm.step

    def given_events(self, num_workers: int) -> list[Event]:
        """What happens when, where a file says it; [] where time decides."""
        name = getattr(self, "events", None)
        return [] if name is None else read_events(name, num_workers)

    @abstractmethod
    def place(self, team: Team) -> Any:
        """Where all workers of a team meet, which their programs have in common: `Groups`, `Pairs` or `Slots`."""

    @abstractmethod
    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """The operations of worker i, one after the other."""

    def step(self, s: Any, oracle: Oracle, net: Network, t: int) -> Any:
        """Raises ConfigError: workers do not step together."""
        raise ConfigError(
            f"algo={self.name} is asynchronous, without common steps: use decentral-run, in a virtual cluster such as "
            "cluster=even, or with several processes."
        )

    def update(self, s: Any, i: int, g: Tensor, t: int) -> None:
        """x_i <- x_i + u_i in place, for the gradient g [P] of the worker's own step t."""
        row = slice(i, i + 1)
        before, opt = s.x[row], tuple([buffer[row] for buffer in s.opt])
        x, new = self.local.adapt(before, g[None], opt, t)
        for old, value in zip((before, *opt), (x, *new), strict=True):
            if value is not old and value.data_ptr() != old.data_ptr():
                old.copy_(value)


__all__ = ["AsynchronousAlgorithm", "Gradient", "Local", "Team"]
