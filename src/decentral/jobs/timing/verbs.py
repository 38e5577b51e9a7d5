"""What algorithms ask of a network, without anything to train: the verbs alone, and whole steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.jobs.timing.group import Work, sent_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from decentral.algorithms.algorithm import Oracle
    from decentral.config.schema import Config
    from decentral.network.world import World


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

        from decentral.training.assemble import open_network

        self.net, self.t = open_network(config, world, loses=False), 0
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

        from decentral.compression.row_layout import RowLayout
        from decentral.training.assemble import open_network, with_rate
        from decentral.training.stepper import Stepper

        self.net = open_network(config, world, loses=False)
        algorithm = with_rate(config, lambda t: config.lr, RowLayout.flat(num_coordinates))
        self.stepper = Stepper(algorithm, self.net, ready(num_coordinates), torch.ones(1, num_coordinates))

    def __call__(self) -> None:
        self.stepper.step()

    def sent(self) -> tuple[int, int]:
        return sent_by(self.net)

    def close(self) -> None:
        self.net.close()


def ready(num_coordinates: int) -> Oracle:
    """An oracle whose gradient is there already: normal numbers [1, P], no two of which are as large."""
    import torch

    g = torch.randn(1, num_coordinates, generator=torch.Generator().manual_seed(0))

    def oracle(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        return g

    return oracle
