"""NoLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.features import Feature
from decentral.errors import ConfigError
from decentral.optim.rows import add, copy, scale, sub
from decentral.randomness import numpy_generator
from decentral.settings import setting
from decentral.store.digests import file_digest
from decentral.store.files import at_home
from decentral.topology.file import File
from decentral.topology.mixing_matrix import MixingMatrix
from decentral.topology.requirements import check
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows
    from decentral.network.network import Network
    from decentral.topology.rounds import Rounds


@dataclass
class NoLoCo(Algorithm):
    """NoLoCo: DiLoCo with averages of random pairs instead of an all-reduce.

        x_i <- x_i + u_i                     and, when t + 1 is a multiple of H = `period_steps`,
        d_i   <- a d_i + b sum_j Q_ij (x_j - phi_j) + g (sum_j Q_ij phi_j - phi_i)            d^0 = 0
        phi_i <- phi_i + d_i,  x_i <- phi_i

    with a = `outer_momentum`, b = `outer_lr`, g = `consensus`, and Q the average over random groups of `group_size`,
    drawn anew for each outer step (one group is larger if that does not divide n). phi and x - phi share a row and are
    sent as one message. Kolehmainen et al., 2025 (arXiv:2506.10911; formula and defaults from the authors' code,
    a = 0.5, b = g = 0.7, H = 50; from memory, the paper's text was not checked: a < g < sqrt(2 + a^2) for pairs). This
    is heavy-ball momentum, although it is called modified Nesterov. The mean of the phi_i follows DiLoCo with
    nesterov=false exactly, and with one group of all so does every worker; a = 0, b = g = 1 averages the models of
    pairs. Workers do not reach consensus during training: each worker and the mean are evaluated. Departure: groups
    follow from (`seed`, index of the outer step), not from numpy's generator with the step as its seed; or they are
    given: `pairs` is a file as for topology=file, whose round r has the edges of the groups of outer step r, such as a
    CSV file with the columns round,source,target. Topology: not used.
    """

    name: str = "noloco"
    period_steps: int = setting(50, at_least=1, as_sgd=1)
    outer_lr: float = setting(0.7, at_least=0, as_sgd=1)
    outer_momentum: float = setting(0.5, at_least=0, below=1, as_sgd=0)
    consensus: float = setting(0.7, at_least=0, below=2, as_sgd=1)
    group_size: int = setting(2, at_least=2, as_sgd=1000)
    seed: int = 0
    pairs: str | None = setting(None, content=True, older=None)
    supports = (Algorithm.supports | {Feature.own_starts, Feature.own_steps}) - {Feature.message_loss, Feature.topology}

    class State(NamedTuple):
        """Current models, models after the last outer step, outer momentum, and the local optimizer."""

        x: Rows  # [k, P], and so are all others
        phi: Rows
        d: Rows
        opt: Buffers

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P], phi = x, d = 0, and the local optimizer before step 0."""
        return self.State(x, x.clone(), x.new_zeros(x.shape), self.local.init(x))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take one local update; at the end of a period, average two vectors in groups and take an outer step."""
        x, phi, d, opt = s
        x, opt = self.local.adapt(x, oracle(x), opt, t)
        if (t + 1) % self.period_steps == 0:
            pair = x.new_empty(len(x), 2, x.shape[-1])
            pair[:, 0], pair[:, 1] = phi, sub(x, phi)
            pair = net.mix_with(pair, self.groups(net.n, t // self.period_steps))
            d = add(scale(d, self.outer_momentum), pair[:, 1], alpha=self.outer_lr)
            d = add(d, sub(pair[:, 0], phi), alpha=self.consensus)
            phi = add(phi, d)
            x = copy(phi, out=x)
        return self.State(x, phi, d, opt)

    def parts(self, s: State) -> Parts:
        """Return x and phi: with x alone, x - phi would be a step that no worker took."""
        return Parts((s.x, s.phi))

    def groups(self, n: int, round: int) -> MixingMatrix:
        """Return Q of the outer step `round` = 0, 1, ...: symmetric, 1 / size in every group."""
        if self.pairs is not None:
            return self._given(n).mixing(round)[0]
        order = numpy_generator(self.seed, "noloco", round).permutation(n)
        number = max(1, n // self.group_size)
        of = np.empty(n, dtype=np.int64)
        of[order] = np.arange(n) % number
        same = of[:, None] == of
        return MixingMatrix.of(same / same.sum(axis=1, keepdims=True))

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError if the given pairs do not match the number of workers or do not keep the mean."""
        if self.pairs is None:
            return
        try:
            rounds = self._given(num_workers)
        except ConfigError as error:
            text = str(error).replace("topology.path", "algo.pairs")
            raise ConfigError(text.replace(" (edges are undirected unless topology.directed=true)", "")) from None
        try:
            check(rounds, {Need.doubly_stochastic}, self.name, "file")
        except ConfigError:
            raise ConfigError(
                f"algo.pairs={self.pairs} has weights whose rows or columns do not sum to 1, so the workers would "
                "converge to a wrong mean: leave the weights out of the file, or give symmetric ones."
            ) from None

    def _given(self, num_workers: int) -> Rounds:
        """Return the file's groups for each outer step."""
        graphs = File(path=self.pairs)
        graphs.implied_num_workers()  # raises if the file is missing
        return _read(str(self.pairs), file_digest(at_home(str(self.pairs))), num_workers)


@lru_cache(maxsize=4)
def _read(path: str, _digest: str, num_workers: int) -> Rounds:
    return File(path=path).schedule(num_workers)
