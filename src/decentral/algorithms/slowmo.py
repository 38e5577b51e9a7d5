"""SlowMo."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from decentral.algorithms.algorithm import Algorithm, Parts
from decentral.algorithms.diloco import outer_step
from decentral.algorithms.dpsgd import DPSGD, Mode
from decentral.algorithms.local_sgd import LocalSGD
from decentral.algorithms.sgp import SGP
from decentral.errors import ConfigError
from decentral.optim.optimizer import is_zero
from decentral.optim.rows import copy, divide, scale, sub
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Oracle, Rows, Shared
    from decentral.compression.compressor import Compressor
    from decentral.compression.rows import AcceptedCompression
    from decentral.network.network import Network
    from decentral.optim.optimizer import LocalOptimizer
    from decentral.topology.rounds import Need


class Base(Enum):
    """The method between two outer steps."""

    dpsgd = "dpsgd"
    dpsgd_awc = "dpsgd_awc"
    sgp = "sgp"
    local_sgd = "local_sgd"


class AtOuterStep(Enum):
    """Treatment of the local optimizer's buffers in an outer step."""

    maintain = "maintain"
    reset = "reset"
    average = "average"


_BASES: dict[Base, Callable[[], Algorithm]] = {
    Base.dpsgd: DPSGD,
    Base.dpsgd_awc: lambda: DPSGD(mode=Mode.awc),
    Base.sgp: SGP,
    Base.local_sgd: lambda: LocalSGD(period_steps=sys.maxsize),  # the outer step averages
}


@dataclass
class SlowMo(Algorithm):
    """SlowMo: a slow outer momentum over the steps of another method.

        one step of the method `base` and, when t + 1 is a multiple of tau = `period_steps`,
        u   <- b u + (phi - 1/n sum_j x_j) / lr              u^0 = 0, phi^0 = x^0, lr = lr(t)
        phi <- phi - a lr u                                  a = `outer_lr`, b = `outer_momentum`
        x_i <- phi

    Wang, Tantia, Ballas & Rabbat, ICLR 2020 (arXiv:1910.00643; formula as in fairscale's code, the paper's text was not
    checked). Defaults: tau as in the paper on CIFAR-10 (from memory), a and b as in fairscale, which has tau = 48 and
    advises b from 0 (below 4 workers) to 0.6 (16). With base=local_sgd and a constant lr it is `diloco` with
    nesterov=false; a=1 b=0 is the base method with a periodic exact average. Bytes: those of the base, and an
    all-reduce of a row per period. Topology and lost messages: as the base; the all-reduce loses none. With base=sgp
    the mean is that of the x_i = w_i z_i, after which all push-sum weights are 1.

    base           dpsgd, dpsgd_awc (mode=awc), sgp (one round), or local_sgd: steps without communication
    buffers        the local optimizer's buffers at an outer step: maintain, reset to 0, or average; optimizers that
                   count steps go on counting
    average        false: each worker uses its own x_i instead of the mean, without an all-reduce (fairscale with SGP)
    in_lr_units    false: u <- b u + (phi - mean x), phi <- phi - a u; the same while lr is constant

    Departure: where lr(t) = 0, u stays and phi <- phi - a (phi - mean x); fairscale divides by zero.
    """

    name: str = "slowmo"
    base: Base = Base.dpsgd
    period_steps: int = setting(12, at_least=1)
    outer_lr: float = setting(1.0, at_least=0, as_sgd=1)
    outer_momentum: float = setting(0.5, at_least=0, below=1, as_sgd=0)
    buffers: AtOuterStep = AtOuterStep.maintain
    average: bool = True
    in_lr_units: bool = True
    usual: ClassVar = {"topology": "ring"}

    class State(NamedTuple):
        """The state of the base, whose other fields are empty; the last outer model and the slow momentum."""

        x: Rows  # [k, P], and so are phi and u
        w: Shared  # [n, d] with base=sgp
        compression_stats: Rows
        phi: Rows
        u: Rows
        opt: Buffers

    @cached_property
    def _base(self) -> Any:
        """Return the method between two outer steps."""
        return _BASES[self.base]()

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Return the requirements of the base on the topology."""
        return self._base.needs  # type: ignore[no-any-return]

    @property
    def takes(self) -> AcceptedCompression:
        """Return the compressors of the base."""
        return self._base.takes  # type: ignore[no-any-return]

    def bind(self, local: LocalOptimizer, compressor: Compressor | None = None) -> Self:
        """See `Algorithm`."""
        bound = super().bind(local, compressor)
        bound._base = self._base.bind(local, compressor)
        return bound

    def check(self, num_workers: int, optim: Any) -> None:
        """See `Algorithm`."""
        if self.buffers is not AtOuterStep.maintain and getattr(optim, "num_buffers", None) is None:
            whose = "a torch optimizer" if optim is None else f"optim={optim.name}"
            raise ConfigError(
                f"algo.buffers={self.buffers.value} needs the state of the local optimizer, but that of {whose} is not "
                "known: use optim=adam, adamw, adopt or sgd of decentral-run, or algo.buffers=maintain."
            )

    def init(self, x: Tensor, net: Network) -> State:
        """Return the base's state at x [k, P], phi = x, u = 0."""
        empty = {"w": x.new_zeros(0), "compression_stats": x.new_zeros(len(x), 0)}
        return self.State(**empty | self._base.init(x, net)._asdict(), phi=x.clone(), u=x.new_zeros(x.shape))

    def step(self, s: State, oracle: Oracle, net: Network, t: int) -> State:
        """Take a step of the base, and an all-reduce with an outer step at the end of a period."""
        inner = self._base.State
        inner = inner(**{name: getattr(s, name) for name in inner._fields})
        s = s._replace(**self._base.step(inner, oracle, net, t)._asdict())
        return self.outer(s, net, t) if (t + 1) % self.period_steps == 0 else s

    def outer(self, s: State, net: Network, t: int) -> State:
        """Take the outer step after step t."""
        x, w, stats, phi, u, opt = s
        if self.average:
            x = net.mean(net.weigh(x, w) if len(w) else x)
            w = w.fill_(1.0)
        D = sub(phi, x, out=x)
        lr = self.local.lr(t) if self.in_lr_units else 1.0
        if is_zero(lr):
            phi = sub(phi, D, alpha=self.outer_lr)
        else:
            phi, v = outer_step(phi, scale(u, lr), D, self.outer_lr, self.outer_momentum, nesterov=False)
            u = divide(v, lr)
        if self.buffers is AtOuterStep.reset:
            opt = tuple(buffer.zero_() for buffer in opt)
        elif self.buffers is AtOuterStep.average:
            opt = tuple(net.mean(buffer) for buffer in opt)
        return self.State(copy(phi, out=D), w, stats, phi, u, opt)

    def regroup(self, s: State, net: Network, t: int) -> State:
        """Start returning workers at phi, as all workers start a period."""
        return s._replace(x=copy(s.phi, out=s.x))

    def parts(self, s: State) -> Parts:
        """Return phi and u, which are equal on all workers if they average."""
        return Parts(replicas=("phi", "u")) if self.average else Parts((s.phi, s.u))
