"""Partial averaging with neighbors: `Peers`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.processes import ProcessNetwork
from decentral.network.processes import join as join_network
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.world import World
from decentral.registry.typed import typed
from decentral.script import calls
from decentral.script.agreement import Proposal, agree, heard_by_all
from decentral.script.calls import Named, Values, Weights, read
from decentral.script.group import Group
from decentral.script.handle import Handle, guarded, verb
from decentral.topology.communication import Communication
from decentral.topology.delivery import Losses
from decentral.topology.graph import Graph, union
from decentral.topology.rounds import Rounds
from decentral.topology.topology import Topology

_SHAPES_IN_SHARED_MEMORY = 64
_ROUNDS_COMPARED = 64


def content(topology: Topology, communication: Communication, schedule: Rounds) -> str:
    """Return, as text, what must agree on all ranks: the name, the settings, and a checksum of the matrices."""
    checksum = 0
    for round in range(min(schedule.period, _ROUNDS_COMPARED)):
        for W in schedule.mixing(round):
            for column in (W.src, W.dst, W.weight):
                checksum = zlib.crc32(column.tobytes(), checksum)
    told = ", ".join([topology.name, *sorted(f"{key}={value}" for key, value in vars(communication).items())])
    return f"topology {told} with the matrices {checksum:08x} (period {schedule.period})"


class Peers(Group):
    """This process as worker `rank` of `size`, from `decentral.join`; a context manager that leaves on exit.

    All ranks call the same operations in the same order. An operation takes a tensor of any shape, layout and dtype, on
    `device` or on the CPU; or a list of tensors, or a module, which stands for its parameters. These are fused into one
    message per dtype, and the result is a list. Gradients do not flow through operations.

    - The result is new memory; x changes only with `inplace=True` and then is the result.
    - With `async_op=True` an operation returns a `Handle` at once: `handle.wait()` returns the result. Until then, x
      must not change.
    - `check` overrides the `check` of `join` for a call: True compares the calls of all ranks before anything is sent,
      and raises ConfigError on every rank if they do not match. The group remains usable.

    `topology` and `communication` are the arguments of `join`. `schedule.matrices(round)` returns W [n, n] of a round
    as a tuple of read-only arrays, one for each piece that the topology cuts tensors into (nearly always a single one).
    """

    def __init__(
        self,
        world: World,
        topology: Topology,
        schedule: Rounds,
        *,
        communication: Communication | None = None,
        check: bool | None = None,
        timeout_s: float = 120.0,
        leaves: bool = False,
    ) -> None:
        """See `decentral.join`. `leaves`: `close` also destroys the process group."""
        super().__init__(world, check, leaves)
        self.topology, self.schedule, self.timeout_s = topology, schedule, timeout_s
        self.communication = communication or Communication()
        self._schedules = {1: schedule}
        self._networks: dict[tuple[int, str, Carrier], ProcessNetwork] = {}
        self._shapes: set[tuple[int, torch.dtype]] = set()
        self._compared: set[tuple[int, torch.dtype]] = set()

    def __repr__(self) -> str:
        return f"Peers(rank {self.rank} of {self.size}, topology={self.topology.name}, {self.communication})"

    @typed("round")
    @verb
    def neighbor_allreduce(
        self,
        x: Values,
        round: int = 0,
        *,
        self_weight: float | None = None,
        src_weights: Named | None = None,
        dst_weights: Named | None = None,
        inplace: bool = False,
        check: bool | None = None,
        async_op: bool = False,
    ) -> Handle:
        """x_i <- sum_j W_ij x_j with W of this round; or, with weights, x_i <- w_ii x_i + sum_j r_ij (s_ij x_j).

        Without weights, this is a round of the schedule (including hierarchical and global ones). With weights, the
        call defines its own graph, which may depend on data: `self_weight` is w_ii; `src_weights` {j: r_ij} weighs what
        this rank receives from j; `dst_weights` {j: s_ji} scales what it sends to j, before sending. A list of ranks
        means weights of 1.

        - push: self_weight and dst_weights. The senders to this rank are inferred (r = 1).
        - pull: self_weight and src_weights. The receivers from this rank are inferred (s = 1).
        - push-pull: all three. src_weights and dst_weights of all ranks must match, which is checked unless
          check=False; only then ranks without neighbors need not call.

        The order of summation is x_i first, then sources ascending. Ying et al., "BlueFog", 2021, (10) to (12).
        """
        name = "neighbor_allreduce"
        if self_weight is None and src_weights is None and dst_weights is None:
            return self._scheduled(name, x, round, 1, inplace, check)
        weights = lambda: read(self_weight, src_weights, dst_weights, self.rank, self.size)  # noqa: E731
        checked = self._checks(check, True) or src_weights is None or dst_weights is None
        return calls.begin_weighted(self.world, name, x, weights, checked, inplace)

    @typed("workers_per_machine", "round")
    @verb
    def hierarchical_neighbor_allreduce(
        self,
        x: Values,
        workers_per_machine: int,
        round: int = 0,
        *,
        self_weight: float | None = None,
        src_machine_weights: Named | None = None,
        dst_machine_weights: Named | None = None,
        inplace: bool = False,
        check: bool | None = None,
        async_op: bool = False,
    ) -> Handle:
        """x_m <- w_mm mean_m + sum_k r_mk (s_mk mean_k), for machines m of L ranks; mean_k is the mean of machine k.

        Machine m has the ranks m L to m L + L - 1, which all pass the same weights. Without weights, w is the matrix of
        this round of the topology of `join` for size / L machines. Otherwise as in `neighbor_allreduce`.

        Three phases: reduce-scatter within the machine, an exchange of each shard between the ranks at one place of all
        machines, all-gather within the machine. This uses all network cards, and each rank sends 1/L of x to other
        machines. With async_op, only the first phase is in the background.
        """
        name, L = "hierarchical_neighbor_allreduce", workers_per_machine
        if self_weight is None and src_machine_weights is None and dst_machine_weights is None:
            return self._scheduled(name, x, round, L, inplace, check)

        def weights() -> Weights:
            calls.check_machines(L, self.size)
            m, place = divmod(self.rank, L)
            found = read(self_weight, src_machine_weights, dst_machine_weights, m, self.size // L, "machine")
            named = [None if side is None else {j * L + place: w for j, w in side.items()} for side in found[1:]]
            return Weights(found.own, *named)

        checked = self._checks(check, True) or src_machine_weights is None or dst_machine_weights is None
        return calls.begin_weighted(self.world, name, x, weights, checked, inplace, L)

    @verb
    def pair_gossip(
        self,
        x: Values,
        target: int | None,
        self_weight: float = 0.5,
        pair_weight: float = 0.5,
        *,
        inplace: bool = False,
        check: bool | None = None,
        async_op: bool = False,
    ) -> Handle:
        """x_i <- self_weight x_i + pair_weight x_target; the two ranks name each other.

        Other ranks need not call, unless check=True; a rank without a partner passes None and keeps x.
        """

        def weights() -> Weights:
            if target is None:
                return Weights(1.0, {}, {})
            partner = calls.rank_of("target", target, self.size)
            return read(self_weight, {partner: pair_weight}, [partner], self.rank, self.size)

        return calls.begin_weighted(self.world, "pair_gossip", x, weights, self._checks(check, False), inplace)

    @verb
    def neighbor_allgather(
        self,
        x: Tensor,
        src_ranks: Sequence[int] | None = None,
        dst_ranks: Sequence[int] | None = None,
        round: int = 0,
        *,
        check: bool | None = None,
        async_op: bool = False,
    ) -> Handle:
        """Concatenate the neighbors' tensors, without x itself, along dimension 0, in which lengths may differ.

        The neighbors are those of the round, sources ascending; or `src_ranks`, in this order, and `dst_ranks`. One of
        the two is enough: the other is inferred.
        """
        if src_ranks is None and dst_ranks is None:
            src_ranks, dst_ranks = self.in_neighbors(round), self.out_neighbors(round)
        checked = self._checks(check, True) or src_ranks is None or dst_ranks is None
        return calls.begin_neighbor_allgather(self.world, x, src_ranks, dst_ranks, checked)

    @guarded
    def infer_ranks(
        self, src_ranks: Sequence[int] | None = None, dst_ranks: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the sources and destinations of this rank, ascending, from the side or sides that every rank names.

        For a static graph: call this once, then pass both sides and check=False. Raises ConfigError on every rank if
        the named ranks do not match.
        """

        with heard_by_all(self.world):
            named = read(0, src_ranks, dst_ranks, self.rank, self.size, key="ranks")
        agreement = agree(self.world, Proposal("infer_ranks", "ranks", named.sources, named.destinations))
        return agreement.sources, agreement.destinations

    def in_neighbors(self, round: int = 0) -> list[int]:
        """Return the ranks that this one receives from in a round, ascending."""
        edges = self._edges(round)
        return edges.src[edges.dst == self.rank].tolist()

    def out_neighbors(self, round: int = 0) -> list[int]:
        """Return the ranks that receive from this one in a round, ascending."""
        edges = self._edges(round)
        return edges.dst[edges.src == self.rank].tolist()

    def _edges(self, round: int) -> Graph:
        return union(self.size, (W.graph for W in self.schedule.mixing(round)))

    def _scheduled(
        self, name: str, x: Values, round: int, workers_per_machine: int, inplace: bool, check: bool | None
    ) -> Handle:
        checked = self._checks(check, False)
        with heard_by_all(self.world, checked):
            if not hasattr(round, "__index__") or round < 0:
                raise ConfigError(f"round={round!r} is invalid: use a whole number >= 0.")
            calls.check_machines(workers_per_machine, self.size)
            bundle = calls.bundle_of(x, name, weighted=True, inplace=inplace)
        if checked:
            content = f"{bundle.content} in round {round}{calls.of_machines(workers_per_machine)}"
            agree(self.world, Proposal(name, content, (), ()))
        rows = bundle.writable()
        mixings = [self._network(name, x, workers_per_machine).begin_mix(x[None], int(round)) for x in rows]
        return Handle(name, None, lambda: bundle.restore([mixing()[0] for mixing in mixings]))

    def _network(self, verb: str, x: torch.Tensor, workers_per_machine: int) -> ProcessNetwork:
        """Return the network of a device type and machine size, opened by all ranks at its first use.

        All ranks compare the first rows of each length and dtype: later mistakes also end in an error. Shared memory
        keeps a buffer for every row length, so after a few different lengths rows use torch.distributed.
        """
        carrier, shape = Carrier.auto, (x.numel(), x.dtype)
        if shape not in self._compared:
            for network in self._networks.values():
                network.transport.tell_of_something_new()
            agree(self.world, Proposal(verb, f"{shape[0]} numbers of {shape[1]}", (), ()))
            self._compared.add(shape)
        if len(self._shapes) < _SHAPES_IN_SHARED_MEMORY:
            self._shapes.add(shape)
        if shape not in self._shapes:
            carrier = Carrier.torch
        if workers_per_machine not in self._schedules:
            machines = Communication(workers_per_machine=workers_per_machine)
            self._schedules[workers_per_machine] = machines.schedule(self.topology, self.size)
        key = workers_per_machine, x.device.type, carrier
        if key not in self._networks:
            self._networks[key] = open_network(self, self._schedules[workers_per_machine], x.device, carrier)
        return self._networks[key]

    def _release(self) -> None:
        for network in self._networks.values():
            network.close()
        self._networks = {}
        super()._release()


def open_network(peers: Peers, schedule: Rounds, device: torch.device, carrier: Carrier) -> ProcessNetwork:
    """Open a network for rows on this kind of device, together with all other ranks."""
    settings = NetworkSettings(timeout_s=peers.timeout_s, transport=carrier)
    return join_network(schedule, Losses(0.0, seed=0), device, peers.rank, peers.size, settings)
