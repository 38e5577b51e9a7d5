"""Rounds of the schedule, on the network that experiments run on."""

from __future__ import annotations

import torch

from decentral.network.processes import ProcessNetwork
from decentral.network.processes import join as join_network
from decentral.network.rounds import Losses
from decentral.network.settings import Carrier, NetworkSettings
from decentral.peers.agreement import Proposal, agree
from decentral.peers.bundle import Bundle
from decentral.peers.handle import Handle
from decentral.topology.communication import Communication
from decentral.topology.schedule import Schedule
from decentral.topology.topology import Topology
from decentral.world import World

_SHAPES_IN_SHARED_MEMORY = 64


class Networks:
    """A network for each kind of device, opened at its first use, by all ranks at once.

    The first time that rows of a length and dtype come, all ranks compare them: later mistakes end in an error, too.

    Shared memory keeps a place for every length of rows that it has seen, so rows of more than a few different lengths
    go through torch.distributed.
    """

    def __init__(self, world: World, topology: Topology, schedule: Schedule, timeout_s: float) -> None:
        self.world, self.topology, self.timeout_s = world, topology, timeout_s
        self._schedules = {1: schedule}
        self._networks: dict[tuple[int, str, Carrier], ProcessNetwork] = {}
        self._shapes: set[tuple[int, torch.dtype]] = set()
        self._compared: set[tuple[int, torch.dtype]] = set()

    def begin(self, verb: str, bundle: Bundle, round: int, workers_per_machine: int, inplace: bool) -> Handle:
        """x_i <- sum_j W_ij x_j with W of this round, or with W (x) J / L of the topology for machines of L ranks."""
        rows = bundle.rows()
        mixings = []
        for row in rows:
            x = row.values if row.owned or inplace else row.values.clone()
            mixings.append(self._network(verb, x, workers_per_machine).begin_mix(x[None], round))
        return Handle(
            verb, None, lambda: bundle.restore(rows, [mixing.wait()[0] for mixing in mixings], inplace=inplace)
        )

    def close(self) -> None:
        """Close all networks."""
        for network in self._networks.values():
            network.close()
        self._networks = {}

    def _network(self, verb: str, x: torch.Tensor, workers_per_machine: int) -> ProcessNetwork:
        carrier, shape = Carrier.auto, (x.numel(), x.dtype)
        if shape not in self._compared:
            agree(self.world, Proposal(verb, f"{shape[0]} numbers of {shape[1]}", (), ()))
            self._compared.add(shape)
        if len(self._shapes) < _SHAPES_IN_SHARED_MEMORY:
            self._shapes.add(shape)
        if shape not in self._shapes:
            carrier = Carrier.torch
        key = workers_per_machine, x.device.type, carrier
        if key not in self._networks:
            settings = NetworkSettings(timeout_s=self.timeout_s, transport=carrier)
            self._networks[key] = join_network(
                self._schedule(workers_per_machine),
                Losses(0.0, seed=0),
                x.device,
                self.world.rank,
                self.world.size,
                settings,
            )
        return self._networks[key]

    def _schedule(self, workers_per_machine: int) -> Schedule:
        if workers_per_machine not in self._schedules:
            machines = Communication(workers_per_machine=workers_per_machine)
            self._schedules[workers_per_machine] = machines.schedule(self.topology, self.world.size)
        return self._schedules[workers_per_machine]
