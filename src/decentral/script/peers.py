"""One worker among others: partial averaging."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.processes import ProcessNetwork
from decentral.network.processes import join as join_network
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.world import World
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


class Peers(Group):
    """This process as worker `rank` of `size`, from `decentral.join`; a context manager that leaves at its end.

    All ranks call the same verbs in the same order. A verb takes a tensor of any shape, layout and dtype, on `device`
    or on the CPU; or a list of tensors, or a module, whose parameters are meant: these travel fused, one message for
    each dtype, and a list comes back. Gradients do not flow through verbs.

    - The result is new memory; x itself is changed only with `inplace=True`, which then is the result.
    - With `async_op=True` a verb returns a `Handle` at once: `handle.wait()` gives the result. Until then, x must not
      change.
    - `check` overrides the `check` of `join` for a call: True compares, before anything is sent, what all ranks are
      about to do, and raises ConfigError on every one of them if it does not fit together. The group works on
      afterwards.

    `topology` and `communication` are what `join` was told. `schedule.matrices(round)` has W [n, n] of a round as a
    tuple of read-only arrays, one for each piece that the topology cuts tensors into (nearly always a single one).
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
        """See `decentral.join`. `leaves`: whether `close` ends the process group, too."""
        super().__init__(world, check, leaves)
        self.topology, self.schedule, self.timeout_s = topology, schedule, timeout_s
        self.communication = communication or Communication()
        self._schedules = {1: schedule}
        self._networks: dict[tuple[int, str, Carrier], ProcessNetwork] = {}
        self._shapes: set[tuple[int, torch.dtype]] = set()
        self._compared: set[tuple[int, torch.dtype]] = set()

    def __repr__(self) -> str:
        return f"Peers(rank {self.rank} of {self.size}, topology={self.topology.name}, {self.communication})"

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

        Without weights, this is a round of the schedule (hierarchical and global ones too). With them, it is a call on
        a graph of its own, which may change with data: `self_weight` is w_ii; `src_weights` {j: r_ij}, with which this
        rank weighs what it receives from j; `dst_weights` {j: s_ji}, with which it scales what it sends to j before it
        is sent. Ranks without weights mean 1.

        - push: self_weight and dst_weights. Who sends to this rank is found out (r = 1).
        - pull: self_weight and src_weights. Who wants to hear from this rank is found out (s = 1).
        - push-pull: all three. src_weights and dst_weights of all ranks have to match, which is checked unless
          check=False; only then ranks without neighbours need not call.

        The sum is taken in order: x_i first, then sources ascending. Ying et al., "BlueFog", 2021, (10) to (12).
        """
        name = "neighbor_allreduce"
        if self_weight is None and src_weights is None and dst_weights is None:
            return self._scheduled(name, x, round, 1, inplace, check)
        weights = lambda: read(self_weight, src_weights, dst_weights, self.rank, self.size)  # noqa: E731
        checked = self._checks(check, True) or src_weights is None or dst_weights is None
        return calls.begin_weighted(self.world, name, x, weights, checked, inplace)

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
        """x_m <- w_mm mean_m + sum_k r_mk (s_mk mean_k), for machines m with L ranks each; mean_k is that of machine k.

        Machine m has the ranks m L to m L + L - 1, all of which give the same weights. Without weights, w is the matrix
        of this round that the topology of `join` has for size / L machines. Otherwise as in `neighbor_allreduce`.

        Reduce-scatter in the machine, every shard between the ranks of one place on all machines, all-gather in the
        machine: all network cards are used, and each rank sends 1/L of x to other machines. With async_op, the first of
        the three is in the background.
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

        The others need not call, unless check=True; a rank that sits out names None and keeps x.
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
        """What neighbours have, one after the other along dimension 0, in which lengths may differ; not x itself.

        The neighbours are those of the round, sources ascending; or `src_ranks`, in this order, and `dst_ranks`, of
        which one suffices: the other is found out.
        """
        if src_ranks is None and dst_ranks is None:
            src_ranks, dst_ranks = self.in_neighbors(round), self.out_neighbors(round)
        checked = self._checks(check, True) or src_ranks is None or dst_ranks is None
        return calls.begin_neighbor_allgather(self.world, x, src_ranks, dst_ranks, checked)

    @guarded
    def infer_ranks(
        self, src_ranks: Sequence[int] | None = None, dst_ranks: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """The sources and destinations of this rank, ascending, when every rank names one side, or both.

        For a graph that stays: ask once, then call with both sides and check=False. Raises ConfigError on every rank if
        what they name does not match.
        """

        with heard_by_all(self.world):
            named = read(0, src_ranks, dst_ranks, self.rank, self.size, key="ranks")
        agreement = agree(self.world, Proposal("infer_ranks", "ranks", named.sources, named.destinations))
        return agreement.sources, agreement.destinations

    def in_neighbors(self, round: int = 0) -> list[int]:
        """The ranks that this one takes from in a round, ascending."""
        edges = self._edges(round)
        return edges.src[edges.dst == self.rank].tolist()

    def out_neighbors(self, round: int = 0) -> list[int]:
        """The ranks that take from this one in a round, ascending."""
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
        """A network for each kind of device, and for machines of so many ranks, opened at its first use by all at once.

        The first time that rows of a length and dtype come, all ranks compare them: later mistakes end in an error,
        too. Shared memory keeps a place for every length of rows that it has seen, so rows of more than a few different
        lengths go through torch.distributed.
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
            schedule = self._schedules[workers_per_machine]
            settings = NetworkSettings(timeout_s=self.timeout_s, transport=carrier)
            certain = Losses(0.0, seed=0)
            self._networks[key] = join_network(schedule, certain, x.device, self.rank, self.size, settings)
        return self._networks[key]

    def _release(self) -> None:
        for network in self._networks.values():
            network.close()
        self._networks = {}
        super()._release()
