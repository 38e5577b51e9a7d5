"""The interface of every algorithm."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, cast

from decentral.compression.rows import AcceptedCompression
from decentral.settings import Settings
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from decentral.compression.compressor import Compressor, Encoder
    from decentral.network.network import Network
    from decentral.optim.optimizer import LocalOptimizer, Taken
    from decentral.topology.rounds import Rounds

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
    """Weight decay is on."""
    warms_up: bool
    """Compression becomes stronger over the first epochs (`compress.warmup_epochs`)."""
    between_processes: bool
    """Workers run in several processes; those of an asynchronous method then run truly asynchronously."""


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

    survives_loss: ClassVar[bool] = True
    """Whether it handles lost messages (`network.drop_probability`). A collective all-reduce does not."""

    survives_absence: ClassVar[bool] = True
    """Whether workers may be absent for some steps (`availability=`). Rows of absent workers are frozen, so a
    synchronous method needs no special rule unless it keeps more than rows."""

    stale_returns: ClassVar[bool] = True
    """Whether a worker may return with the model it had when it left (`availability.on_return=stale`)."""

    replicas: ClassVar[tuple[str, ...]] = ()
    """Fields of the state whose rows are equal on all present workers: a returning worker copies them."""

    needs_samples: ClassVar[bool] = False
    """True for methods that estimate a mean of samples x - gradient(x) instead of minimizing a loss."""

    usual_topology: ClassVar[str] = ""
    """The default `topology=` of this algorithm; '' means double binary trees with relayed messages."""

    usual_compress: ClassVar[str] = ""
    """The default `compress=` of this algorithm; '' for none."""

    own_residuals: ClassVar[bool] = False
    """Whether it keeps compression residuals itself, so that `compress.error_feedback` does not apply."""

    sent_by_length: ClassVar[bool] = True
    """Whether the bytes sent without a compressor depend on the row length only, not on the split into layers."""

    uses_topology: ClassVar[bool] = True
    """Whether the topology matters; if not, the run's ID excludes it."""

    own_starts: ClassVar[bool] = False
    """Whether workers may start from different models (a file's `x0 [n, d]`)."""

    own_rates: ClassVar[bool] = True
    """Whether each update uses one worker's learning rate, so that rates may differ (`lr_per_worker`)."""

    only_local_between: ClassVar[bool] = False
    """Whether a step between two communications is x_i + u_i only, which a worker may skip
    (`steps_per_worker`)."""

    has_local_steps: ClassVar[bool] = False
    """Whether it supports `communication.every` although it needs the same graph in every round."""

    mixes_models: ClassVar[bool] = False
    """Whether workers send only models, through `Network.mix`, and no sum over workers is kept. `robust=` and `attack=`
    require this."""

    asynchronous: ClassVar[bool] = False
    """Whether processes run without waiting for each other, so that a result across processes depends on their pace."""

    as_sgd: ClassVar[dict[str, Any] | None] = {}
    """Settings that make it plain SGD on the mean gradient on a complete graph, the reference of `decentral-check`.
    None: no setting does."""

    if TYPE_CHECKING:  # no settings
        local: LocalOptimizer
        """The local optimizer with its learning rate, set by `bind`. Neither configuration nor state."""

        compressor: Compressor
        """The compressor of messages (`compress=`), set by `bind`. Neither configuration nor state."""

        taken: Callable[[int], Taken]
        """Step t -> the number of steps that workers have taken before it: t, except for absences (`Attendance`)."""

    def bind(self, local: LocalOptimizer, compressor: Compressor | None = None) -> Self:
        """Return a copy of this algorithm that takes its local updates from `local`. Call it before `init`.

        compressor  bound to the rows of the models (`Compressor.bound`); None sends rows uncompressed
        """
        from decentral.compression.dense import NoCompression

        bound = copy.copy(self)
        bound.local, bound.compressor, bound.taken = local, compressor or NoCompression(), int
        return bound

    @property
    def takes(self) -> AcceptedCompression:
        """Return the compressors that it supports (`compress=`)."""
        return AcceptedCompression.nothing

    @property
    def steps_per_message(self) -> int:
        """Return the number of steps between two calls of the compressor, which counts messages."""
        return 1

    @property
    def encoder(self) -> Encoder:
        """Return the compressor as an `Encoder`, for an algorithm that takes only row-wise encoders."""
        return cast("Encoder", self.compressor)

    def revision(self, of: RevisionOf) -> int:
        """Return the revision of its formula. From 2 on it is part of a run's ID, so that results of an earlier
        revision are not reused."""
        return 1

    @classmethod
    def in_rounds(cls) -> bool:
        """Return whether it can run in synchronous steps of all workers."""
        return True

    def check_workers(self, num_workers: int) -> None:
        """Raise ConfigError if the method does not support this number of workers; fast, without torch."""

    def check_optimizer(self, optim: Any) -> None:
        """Raise ConfigError if the method does not support this local optimizer; None: a script's torch optimizer."""

    @abstractmethod
    def init(self, x: Tensor, net: Network) -> Any:
        """Return the state before step 0, for the initial models x [k, P], equal on all workers unless `own_starts`.
        x is donated."""

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

    def dilution(self, schedule: Rounds) -> float:
        """Return the factor by which a local update counts less in the long run than in all-reduce at equal rate."""
        return 1.0

    def compression_stats(self, s: Any) -> Tensor | None:
        """Return the compression error (`Compressor.compression_stats`) [k, 3]; None without compressed rows."""
        return getattr(s, "compression_stats", None)

    @property
    def attends_steps(self) -> int:
        """Return the number of consecutive steps in which absence is constant: absent in one, absent in all."""
        return int(getattr(self, "period_steps", 1))

    def regroup(self, s: Any, net: Network, t: int) -> Any:
        """Return the state at the beginning of step t, whose set of present workers differs from the last step's."""
        return s

    def taken_over(self, s: Any) -> tuple[Tensor, ...]:
        """Return views [k, ..., P] of the parts of a model, which a returning worker copies together from neighbors."""
        return (self.models(s),)

    def corrections(self, s: Any) -> Tensor | None:
        """Return a view [k, P] of the corrections that sum to zero over all workers; None if it has none."""
        return None

    def models(self, s: Any) -> Tensor:
        """Return the models x_i [k, P] of the local workers, as evaluated and deployed."""
        return s.x
