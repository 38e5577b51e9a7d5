"""The contract that every algorithm fulfils."""

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

    # The kinds of state, by what their first dimension counts. The checkpoint reads them from the annotations of
    # `State`.
    Rows = Tensor  # [k, ...]  one row for each local worker
    EdgeRows = Tensor  # [E, ...]  one row for each directed edge into a local worker
    Shared = Tensor  # the same on every process
    Buffers = tuple[Tensor, ...]  # [k, P] each: the local optimizer's


class Oracle(Protocol):
    """The papers' stochastic gradient: `oracle(x)` is grad F_i(x_i; xi_i) for every local worker, [k, P] -> [k, P].

    Every call draws the next sample xi_i of each worker that it is for. Draws are counted per worker, not per step.
    """

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Gradients g [r, P] at x [r, P]; the caller may overwrite them.

        The rows are those of all local workers, or of `workers`: places among the local ones, each once.
        """


class RevisionOf(NamedTuple):
    """What of a run may decide which version of an algorithm's formula it has."""

    decays: bool
    """There is weight decay."""
    warms_up: bool
    """What is sent of messages falls in the beginning (`compress.warmup_epochs`)."""
    between_processes: bool
    """Workers of an asynchronous method really go on by themselves, if it is one."""


class Algorithm(Settings, ABC, where="algo"):
    """A method: a dataclass whose fields are its configuration, with `init` and `step`, written on rows.

    It sees the models of the k workers of its process as rows [k, P], and all others through the verbs of the network:
    the same `step` runs in one process and in many. `State` is a NamedTuple of everything that it remembers between
    steps, in fields annotated `Rows`, `EdgeRows`, `Shared` or `Buffers`; a checkpoint is the state and nothing else.
    States that several algorithms share are in `states.py`; `__init__.py` has the symbols and the rules for memory.
    """

    name: str
    """What `algo=` calls it; each algorithm sets it in its fields."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the topology must satisfy; checked before the run starts."""

    survives_loss: ClassVar[bool] = True
    """Whether there is a rule for lost messages (`network.drop_probability`). A collective all-reduce has none."""

    survives_absence: ClassVar[bool] = True
    """Whether workers may be absent for some steps (`availability=`). Rows of absent workers rest, so that a method in
    rounds needs no rule of its own, unless it keeps more than rows."""

    stale_returns: ClassVar[bool] = True
    """Whether a worker may come back with the model that it had when it left (`availability.on_return=stale`)."""

    replicas: ClassVar[tuple[str, ...]] = ()
    """Fields of the state whose rows are equal on all workers that take part: who comes back takes them over."""

    needs_samples: ClassVar[bool] = False
    """Whether this is no optimizer, but averages samples x - gradient(x)."""

    usual_topology: ClassVar[str] = ""
    """The default of `topology=` with this algorithm; '' for double binary trees, on which messages are relayed."""

    usual_compress: ClassVar[str] = ""
    """The default of `compress=` with this algorithm; '' for none."""

    own_residuals: ClassVar[bool] = False
    """Whether it keeps what messages leave out in its own way, so that there is no `compress.error_feedback`."""

    sent_by_length: ClassVar[bool] = True
    """Whether how much it sends without a compressor follows from how long rows are, however they are cut in layers."""

    uses_topology: ClassVar[bool] = True
    """Whether the topology makes a difference; if not, it is no part of the run's identity."""

    own_starts: ClassVar[bool] = False
    """Whether workers may begin at models that differ (a file's `x0 [n, d]`)."""

    own_rates: ClassVar[bool] = True
    """Whether the rate of an update is one worker's, so that rates may differ (`lr_per_worker`)."""

    only_local_between: ClassVar[bool] = False
    """Whether all that a step does between two communications is x_i + u_i, which a worker may leave out
    (`steps_per_worker`)."""

    has_local_steps: ClassVar[bool] = False
    """Whether it has a form for `communication.every`, although it needs the same graph in every round."""

    mixes_models: ClassVar[bool] = False
    """Whether all that workers send is models, for `Network.mix`, and no sum over workers is kept: what `robust=` and
    `attack=` change."""

    asynchronous: ClassVar[bool] = False
    """Whether processes go on without each other, so that the result of several depends on their pace."""

    as_sgd: ClassVar[dict[str, Any] | None] = {}
    """Settings with which it is plain SGD on the mean gradient where all workers hear of all in every step; None: it is
    not, with any. What `decentral-check` compares it with."""

    if TYPE_CHECKING:  # no settings
        local: LocalOptimizer
        """The local optimizer with its learning rate, bound by `bind`. Not configuration, and no state."""

        compressor: Compressor
        """What is sent instead of rows (`compress=`), bound by `bind`. Not configuration, and no state."""

        taken: Callable[[int], Taken]
        """Step t -> how many steps workers have taken before it: t, but for absences (`Attendance`)."""

    def bind(self, local: LocalOptimizer, compressor: Compressor | None = None) -> Self:
        """A copy of this algorithm that takes its local updates from `local`. To be called before `init`.

        compressor  bound to the rows of the models (`Compressor.bound`); without it rows are sent as they are
        """
        from decentral.compression.dense import NoCompression

        bound = copy.copy(self)
        bound.local, bound.compressor, bound.taken = local, compressor or NoCompression(), int
        return bound

    @property
    def takes(self) -> AcceptedCompression:
        """Which compressors it can use: `compress=`."""
        return AcceptedCompression.nothing

    @property
    def steps_per_message(self) -> int:
        """How many steps it takes between two calls of the compressor, which counts messages."""
        return 1

    @property
    def encoder(self) -> Encoder:
        """The compressor, of an algorithm that takes only those that encode a row by itself."""
        return cast("Encoder", self.compressor)

    def revision(self, of: RevisionOf) -> int:
        """Which version of its formula this is, part of a run's id from 2 on: results of an earlier one are not taken
        for those of a later one."""
        return 1

    @classmethod
    def in_rounds(cls) -> bool:
        """Whether it can be carried out in steps that all workers take together."""
        return True

    def check_workers(self, num_workers: int) -> None:
        """Raises ConfigError, in one sentence, if the method cannot do with so many workers; quick, without torch."""

    def check_optimizer(self, optim: Any) -> None:
        """Raises ConfigError if the method cannot do with this local optimizer; None: a torch optimizer of a script."""

    @abstractmethod
    def init(self, x: Tensor, net: Network) -> Any:
        """The state before step 0, for the initial models x [k, P], the same for all workers unless `own_starts`; x is
        donated."""

    @abstractmethod
    def step(self, s: Any, oracle: Oracle, net: Network, t: int) -> Any:
        """The state after step t = 0, 1, ..., from the state s before it, which is donated.

        It calls the oracle once, for all workers that take a gradient, so that steps and epochs of all algorithms
        compare; a method of one's own that calls it twice draws two batches in a step. Raises what the network raises
        when another process is gone.
        """

    def flush(self, s: Any, net: Network) -> Any:
        """The state with all that was on its way brought home, so that it is complete.

        Called on all processes after the same step, before the workers are looked at together: evaluations,
        checkpoints, a trace. In one process iterates stay as they are.
        """
        return s

    def dilution(self, schedule: Rounds) -> float:
        """By which factor a single local update counts less in the long run than with all-reduce, at the same rate."""
        return 1.0

    def compression_stats(self, s: Any) -> Tensor | None:
        """What compressed messages leave out (`Compressor.compression_stats`) [k, 3], where rows are compressed."""
        return getattr(s, "compression_stats", None)

    @property
    def attends_steps(self) -> int:
        """Who is absent in one of so many steps that belong together is absent in all of them."""
        return int(getattr(self, "period_steps", 1))

    def regroup(self, s: Any, net: Network, t: int) -> Any:
        """The state at the beginning of step t, in which others are present than in the step before."""
        return s

    def taken_over(self, s: Any) -> tuple[Tensor, ...]:
        """Views [k, ..., P] of what makes up a model: who comes back takes them over from neighbors together."""
        return (self.models(s),)

    def corrections(self, s: Any) -> Tensor | None:
        """A view [k, P] of what adds up to zero over all workers; None where there is no such thing."""
        return None

    def models(self, s: Any) -> Tensor:
        """The models x_i [k, P] of the local workers: what is evaluated, and what a user would deploy."""
        return s.x
