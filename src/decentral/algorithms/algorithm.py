"""The interface of every algorithm."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, cast

from decentral.algorithms.features import USUAL, Feature
from decentral.compression.dense import NoCompression
from decentral.compression.rows import AcceptedCompression
from decentral.errors import ConfigError
from decentral.settings import Settings
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from decentral.compression.compressor import Compressor, Encoder
    from decentral.network.network import Network
    from decentral.optim.optimizer import LocalOptimizer

    # Kinds of state, by their first dimension. The checkpoint reads them from the annotations of `State`.
    Rows = Tensor  # [k, ...]  one row for each local worker
    EdgeRows = Tensor  # [E, ...]  one row for each directed edge into a local worker
    Shared = Tensor  # the same on every process
    Buffers = tuple[Tensor, ...]  # [k, P] each: the local optimizer's


class Oracle(Protocol):
    """The stochastic gradient: `oracle(x)` is grad F_i(x_i; xi_i) for every local worker, [k, P] -> [k, P].

    Each call draws the next sample xi_i of every worker concerned. Draws are counted per worker, not per step.
    """

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Return the gradients g [r, P] at x [r, P]; the caller may overwrite them.

        The rows belong to all local workers, or to `workers`: distinct local indices.
        """


class RevisionOf(NamedTuple):
    """The properties of a run that may determine the revision of its algorithm's formula."""

    decays: bool
    """True if there is weight decay."""
    warms_up: bool
    """True if compression becomes stronger over the first epochs (`compress.warmup_epochs`)."""
    between_processes: bool
    """True if workers run in several processes; those of an asynchronous method then run truly asynchronously."""


class Parts(NamedTuple):
    """The parts of a state that are handed over when workers leave or return (`availability=`)."""

    models: tuple[Tensor, ...] = ()
    """Views [k, ..., P] of the parts of a model, which a returning worker copies together from neighbors."""
    replicas: tuple[str, ...] = ()
    """Fields of the state whose rows are equal on all present workers; a returning worker copies them instead."""
    corrections: Tensor | None = None
    """A view [k, P] of the corrections that sum to zero over all workers (`Feature.corrections`)."""


_LIMITS = "needs_samples", "own_residuals", "asynchronous"
_REPLACED: dict[str, Feature | str] = {
    "survives_loss": Feature.message_loss,
    "survives_absence": Feature.absence,
    "stale_returns": Feature.stale_return,
    "needs_samples": Feature.training,
    "own_residuals": Feature.error_feedback,
    "sent_by_length": Feature.timeline,
    "uses_topology": Feature.topology,
    "own_starts": Feature.own_starts,
    "own_rates": Feature.own_rates,
    "only_local_between": Feature.own_steps,
    "has_local_steps": Feature.local_steps,
    "mixes_models": Feature.robust_mixing,
    "asynchronous": Feature.synchrony,
    "usual_topology": "usual = {'topology': ...}",
    "usual_compress": "usual = {'compress': ...}",
    "as_sgd": "setting(..., as_sgd=...) for each field, or supports without Feature.plain_sgd",
    "check_workers": "check(num_workers, optim)",
    "check_optimizer": "check(num_workers, optim)",
    "replicas": "parts(s)",
    "taken_over": "parts(s)",
    "corrections": "parts(s), and supports with Feature.corrections",
    "steps_per_message": "attends_steps",
}
"""Former members of `Algorithm` -> the feature of a flag (or its absence, for a name in `_LIMITS`), or a
replacement."""


class Algorithm(Settings, ABC, where="algo"):
    """A method: a dataclass whose fields are its configuration, with `init` and `step` on rows.

    It sees the models of the k workers of its process as rows [k, P], and all others through the network's operations,
    so the same `step` runs in one process and in many. `State` is a NamedTuple of everything it keeps between steps, in
    fields annotated `Rows`, `EdgeRows`, `Shared` or `Buffers`; a checkpoint is exactly this state.
    `states.py` has the states that several algorithms share; `__init__.py` has the symbols and the rules for memory.
    """

    name: str
    """Its name for `algo=`; each algorithm sets it among its fields."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """Requirements on the topology, checked before the run starts."""

    supports: ClassVar[frozenset[Feature]] = USUAL
    """The features that it supports; a configuration that asks for any other feature is refused."""

    usual: ClassVar[dict[str, str]] = {}
    """Its defaults of `topology=` and `compress=`; otherwise double binary trees with relayed messages, and none."""

    num_samples = 1  # no setting
    """Number m of samples of each worker, whose gradients the oracle gives by number; set after `bind`."""

    if TYPE_CHECKING:  # no settings
        local: LocalOptimizer
        """The local optimizer with its learning rate, set by `bind`. Neither configuration nor state."""

        compressor: Encoder
        """The compressor of messages (`compress=`), set by `bind`. Neither configuration nor state."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for old in (name for name in _REPLACED if name in vars(cls)):
            new = _REPLACED[old]
            if isinstance(new, str):
                raise ConfigError(f"{cls.__name__}.{old} no longer exists: define {new}.")
            sign = "|" if bool(vars(cls)[old]) is (old not in _LIMITS) else "-"
            cls.supports = cls.supports | {new} if sign == "|" else cls.supports - {new}
            words = f"write supports = {cls.__mro__[1].__name__}.supports {sign} {{{new}}}"
            warnings.warn(f"{cls.__name__}.{old} is deprecated: {words}.", FutureWarning, stacklevel=2)

    def bind(self, local: LocalOptimizer, compressor: Compressor | None = None) -> Self:
        """Return a copy of this algorithm that takes its local updates from `local`. Call it before `init`.

        compressor  bound to the rows of the models (`Compressor.bound`); None sends rows uncompressed
        """
        bound = copy.copy(self)
        bound.local, bound.compressor = local, cast("Encoder", compressor or NoCompression())
        return bound

    @property
    def takes(self) -> AcceptedCompression:
        """Return the compressors that it supports (`compress=`)."""
        return AcceptedCompression.nothing

    @property
    def attends_steps(self) -> int:
        """Return the number of consecutive steps that belong together: a worker is absent in all of them or in none,
        and messages are compressed once."""
        return int(getattr(self, "period_steps", 1))

    def revision(self, of: RevisionOf) -> int:
        """Return the revision of its formula. From 2 on it is part of a run's ID, so that results of an earlier
        revision are not reused."""
        return 1

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError if the method does not support this number of workers, or this local optimizer (None: a
        script's torch optimizer); fast, without torch."""

    @abstractmethod
    def init(self, x: Tensor, net: Network) -> Any:
        """Return the state before step 0, for the initial models x [k, P], equal on all workers unless
        `Feature.own_starts`. x is donated."""

    @abstractmethod
    def step(self, s: Any, oracle: Oracle, net: Network, t: int) -> Any:
        """Return the state after step t = 0, 1, ..., from the state s before it, which is donated.

        It calls the oracle once, for all workers that take a gradient, so that steps and epochs are comparable between
        algorithms; a custom method that calls it twice draws two batches per step. Network errors propagate, such as
        that of a lost process.
        """

    def flush(self, s: Any, net: Network) -> Any:
        """Deliver all messages in flight and return the complete state.

        Called on all processes after the same step, before an evaluation, a checkpoint or a trace reads all workers.
        In one process it does not change the iterates.
        """
        return s

    def regroup(self, s: Any, net: Network, t: int) -> Any:
        """Return the state at the beginning of step t, whose set of present workers differs from the last step's."""
        return s

    def parts(self, s: Any) -> Parts:
        """Return the parts of the state that are handed over when workers leave or return."""
        return Parts((self.models(s),))

    def models(self, s: Any) -> Tensor:
        """Return the models x_i [k, P] of the local workers, as evaluated and deployed."""
        return s.x
