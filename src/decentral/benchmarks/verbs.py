"""What algorithms ask of a network, without anything to train: the verbs alone, and whole steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.benchmarks.group import Work, sent_by

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.config import Config
    from decentral.network.processes import ProcessNetwork
    from decentral.world import World


@dataclass(frozen=True)
class Verb:
    """One of the network's verbs on a row of so many numbers."""

    config: Config
    num_coordinates: int
    verb: str

    def __call__(self, world: World) -> Work:
        """For the worker of this process."""
        return _Verb(self.config, self.num_coordinates, self.verb, world)


class _Verb(Work):
    def __init__(self, config: Config, num_coordinates: int, verb: str, world: World) -> None:
        import torch

        self.net, self.t = open_network(config, world), 0
        self.x = torch.ones(1, num_coordinates)
        self.carry = {"mix": self._mix, "relay": self._relay, "mean": self._mean}[verb]
        if verb == "relay":
            self.m, self.out = self.net.no_messages(self.x), torch.zeros_like(self.x)

    def __call__(self) -> None:
        self.carry()
        self.t += 1

    def _mix(self) -> None:
        self.x = self.net.mix(self.x, self.t)

    def _relay(self) -> None:
        self.m = self.net.relay(self.x, self.m, self.t)
        self.out = self.net.collect(self.m, self.x, out=self.out)

    def _mean(self) -> None:
        self.x = self.net.mean(self.x)

    def sent(self) -> tuple[int, int]:
        return sent_by(self.net)

    def close(self) -> None:
        self.net.close()


@dataclass(frozen=True)
class Step:
    """The algorithm's own step with a gradient that is there already."""

    config: Config
    num_coordinates: int

    def __call__(self, world: World) -> Work:
        """For the worker of this process."""
        return _Step(self.config, self.num_coordinates, world)


class _Step(Work):
    def __init__(self, config: Config, num_coordinates: int, world: World) -> None:
        import torch

        from decentral.optim.optimizer import LocalRule

        self.net, self.t = open_network(config, world), 0
        self.algorithm = config.algo.using(LocalRule(config.optim, lambda t: config.lr))
        self.g = torch.ones(1, num_coordinates)
        self.state = self.algorithm.init(torch.ones(1, num_coordinates), self.net)

    def __call__(self) -> None:
        self.state = self.algorithm.step(self.state, self._gradient, self.net, self.t)
        self.t += 1

    def _gradient(self, x: Tensor) -> Tensor:
        return self.g

    def sent(self) -> tuple[int, int]:
        return sent_by(self.net)

    def close(self) -> None:
        self.net.close()


def open_network(config: Config, world: World) -> ProcessNetwork:
    """The network of a configuration, without anything to train."""
    from decentral.network.processes import join
    from decentral.network.rounds import Losses

    assert config.num_workers is not None
    schedule = config.rounds()
    return join(schedule, Losses(0.0, config.seed), world.device, world.rank, world.size, config.network)
