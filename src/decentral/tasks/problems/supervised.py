"""Base of problems that train a network on batches of examples: one model per worker."""

from __future__ import annotations

import math
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from decentral.compression.rows import RowLayout
from decentral.data.dataset import opened
from decentral.errors import ConfigError
from decentral.gradients.execution import Loss, Workload
from decentral.gradients.passes.layers import MemoryFormat, forward_examples
from decentral.gradients.passes.passes import bytes_kept
from decentral.gradients.passes.worker_models import WorkerModels, flat, is_foreign_loss, seed_draws
from decentral.gradients.precision import cast
from decentral.host.machine import available_memory
from decentral.host.torch_state import default_dtype
from decentral.host.torchrun import place, under_torchrun
from decentral.models.layers.statistics import evaluating
from decentral.partition.partition import class_counts, own_test_set, save_table
from decentral.randomness import numpy_generator, seeded, torch_generator
from decentral.registry import blame, components
from decentral.tasks.problems.averaged_model import AveragedModel, note
from decentral.tasks.problems.batches import BatchOrder, DrawOrder
from decentral.tasks.problems.scores import Scores
from decentral.tasks.task import WHOLE, Problem, Scope, TaskConfig

if TYPE_CHECKING:
    from decentral.data.dataset import Batch, Batches
    from decentral.network.network import Network
    from decentral.partition.partition import Groups
    from decentral.store.metrics import Metric
    from decentral.tasks.supervised import SupervisedTask

_STATISTICS_BATCH_SIZE = 64
_COPIED_BYTES = 1 << 30  # of models at a time, for tests without side effects
_OUTPUT_BYTES = 1 << 30  # of a forward pass of tests that has more examples than a batch
_TOLD = 4  # parameters


class Supervised(Problem):
    """Per-worker gradients at models that are views of the rows, computed by `execution`.

    A subclass defines the loss (`loss`) and the statistics of test examples (`add_statistics`,
    `usual_metrics`, `usual_values`).

    A step draws inputs and targets [k, B, ...]; or, if workers have batches of different shapes, lists of k, where
    inputs[j] is a module's argument, a tensor or a tuple of tensors.
    """

    def __init_subclass__(cls) -> None:
        """Accept the names of version 2 in a subclass, with a warning."""
        for old, new in (("metrics", "usual_metrics"), ("finish", "usual_values")):
            if old in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is now called {new}: rename it.", stacklevel=3)
                setattr(cls, new, vars(cls)[old])
                delattr(cls, old)
        super().__init_subclass__()

    loss: Loss
    loss_unit = "nats"
    ignored: int | None = None
    """Targets of this value are ignored, such as the padding of sequences."""
    dealt: ClassVar[str] = "class"
    """The kind of labels that a partition uses."""
    num_statistics: int
    """Number of statistics S of `add_statistics`."""
    usual_metrics: tuple[Metric, ...]
    """The metrics of the task, without requested ones (`metrics=`)."""
    together = True
    """True if batches of all workers at the same draw have equal sizes."""
    groups: Groups | None = None
    """The groups of examples that the partition uses instead of labels."""
    order: DrawOrder
    """The order of draws, for `Loaded.train_batches`."""

    def __init__(
        self,
        task: SupervisedTask,
        config: TaskConfig,
        workers: range,
        device: torch.device,
    ) -> None:
        self.task, self.config, self.workers, self.device, self.seed = task, config, workers, device, config.seed
        self.split = config.evaluation.split
        liars = config.attack.attackers(config.num_workers, config.seed) if config.attack.flips_labels else ()
        self.flipped = [i - workers.start for i in liars if i in workers]
        """Local workers that learn from wrong labels: C - 1 - c instead of c, of C classes."""
        self.statistics_examples: int = getattr(task, "statistics_images", 512)
        """Number of training examples for recomputing batch-norm statistics."""
        self.data, self.dtype = opened(config.data, device, config.seed), config.precision.dtype
        self.data.exact = self.dtype is torch.float64
        info = config.data.inspect()
        self.prepare_batches()
        with seeded(config.seed, "initial model"):
            template = config.model.build(info)
        if torch.distributed.is_initialized():
            for name, part in template.named_modules():
                if isinstance(part, torch.nn.SyncBatchNorm):
                    raise ConfigError(
                        f"model={config.model.name}: {name} is a SyncBatchNorm, which would mix the batches of "
                        "different workers: use torch.nn.BatchNorm, or processes=1."
                    )
        cast(template, self.dtype)
        self.models = WorkerModels(template, len(workers), device)
        self.writes = self.models.foreign
        self.average = AveragedModel(template, device)
        self.memory_format = MemoryFormat(template, device)
        self.execution = components("gradients")[self._execution(config)]()
        batch_shape = info.batch_shape(int(config.batch_sizes().max()))
        outputs = task.num_classes(info) * (1 if hasattr(info, "num_classes") else getattr(info, "longest", 1))
        self.forward_examples = forward_examples(template, batch_shape, device, config.evaluation.precision) or max(
            batch_shape[0], _OUTPUT_BYTES // (outputs * self.dtype.itemsize)
        )
        self.workload = Workload(self.models, batch_shape, config.precision, self.loss, self.ignored)
        self._check_memory(template)
        self.passes = self.execution.passes(self.workload)
        self.facts = {
            "execution": self.passes.execution,
            "parameters": (self.models.num_parameters, sum(parameter.numel() for parameter in template.parameters())),
        }
        self._x0 = flat(template).to(device)
        self._streams: dict[int | None, _Stream] = {}
        wanted, given = self.statistics_examples, info.num_train
        self.notes = (
            *config.data.notes(),
            *config.model.notes,
            *note(template, f"{wanted} {'' if wanted <= given else f'draws of {given} '}training {info.kind}"),
        )

    def _check_memory(self, template: torch.nn.Module) -> None:
        """Raise ConfigError if the gradient of a worker, with models and gradients of all, needs more memory than there
        is. Only the GPU knows its own, and says so itself.

        Only a large pass is measured: a number that it keeps takes tens of multiplications.
        """
        config, info, (size, *shape) = self.config, self.config.data.inspect(), self.workload.batch_shape
        free, tokens = available_memory() // (place().local_size if under_torchrun() else 1), hasattr(info, "usual")
        shape = [int(min(info.longest, info.usual))] if tokens else shape
        products = size * min(config.model.multiplications(info), self.models.num_parameters * math.prod(shape))
        rows = 2 * len(self.workers) * self.models.num_parameters * self.dtype.itemsize
        inputs, is_large = torch.int64 if tokens else self.dtype, self.device.type == "cpu" and products >= free
        kept = bytes_kept(template, self.workload, (size, *shape), inputs) if is_large else 0
        if kept and kept + rows > free:
            key, fits = "batch_size_per_worker" if config.batch_size_per_worker else "batch_size", (free - rows) / kept
            cures = [f"{key}={int(fits * size)} or less"] * (fits * size >= 1) + ["a smaller data.longest"] * tokens
            raise ConfigError(
                f"{key}={size} needs {kept / 1e9:.2g} GB of memory for a gradient of model={config.model.name}, and "
                f"{rows / 1e9:.2g} GB for the models and gradients of {len(self.workers)} workers, but only "
                f"{free / 1e9:.2g} GB are available: use {' or '.join([*cures, 'a smaller model or fewer workers'])}."
            )

    def _execution(self, config: TaskConfig) -> str:
        """Return the name of the way to compute gradients: on a GPU side by side only if batches have equal sizes."""
        if self.together or self.device.type == "cpu" or config.execution == "loop":
            return config.execution
        if config.execution == "batched":
            raise ConfigError(
                "execution=batched needs batches of equal size on a GPU, unlike those of batch_size_per_worker: use "
                "execution=loop, or auto."
            )
        return "loop"

    def prepare_batches(self) -> None:
        """Set the sampling: `indices` (of each of the n workers), `order`, and `steps_per_epoch`."""
        config, task = self.config, self.task
        self.groups = config.partition.groups_of(config.data, self.data)
        labels = self.data.train_labels if self.groups is None else self.groups.train
        self.indices = config.partition.indices(labels, config.num_workers, config.seed)
        settings = {"reshuffle": task.reshuffle, "drop_last": task.drop_last}
        sizes, local_steps = config.batch_sizes().tolist(), config.local_steps()
        self.order = order = BatchOrder(self.indices, self.workers, sizes, config.seed, **settings)
        shares = [] if local_steps is None else (local_steps.steps / local_steps.every).tolist()
        self.steps_per_epoch = order.steps_per_epoch(shares)
        self.together = order.is_even

    @cached_property
    def asked(self) -> Scores:
        """Return the metrics selected by `metrics=`."""
        info, classes = self.config.data.inspect(), self.task.num_classes(self.config.data.inspect())
        chance = 1 / classes if hasattr(info, "num_classes") else None
        return Scores(self.config.metrics, chance, classes, self.data.num_test, self.ignored)

    @property
    def num_summed(self) -> int:
        """Return the number of statistics, with those of `asked`."""
        return self.num_statistics + (self.asked.size if self.config.metrics else 0)

    @property
    def metrics(self) -> tuple[Metric, ...]:  # type: ignore[override]
        """Return the requested metrics, then the others of the task."""
        if not self.config.metrics:
            return self.usual_metrics
        return *self.asked.metrics, *(metric for metric in self.usual_metrics if metric not in self.asked.metrics)

    def finish(self, statistics: Tensor) -> Tensor:
        """See `Problem`."""
        if not self.config.metrics:
            return self.usual_values(statistics)
        own, more = statistics.split([self.num_statistics, self.asked.size], dim=-1)
        kept = [m for m, metric in enumerate(self.usual_metrics) if metric not in self.asked.metrics]
        return torch.cat([self.asked.finish(more, self.dtype), self.usual_values(own)[..., kept]], dim=-1)

    @abstractmethod
    def usual_values(self, statistics: Tensor) -> Tensor:
        """Return the `usual_metrics` of complete statistics: [..., S] -> [..., len(usual_metrics)]."""

    def add(self, total: Tensor, outputs: Tensor, targets: Tensor, numbers: Tensor) -> None:
        """Add all statistics of test examples with these numbers to total [S + those of `asked`], in place."""
        self.add_statistics(total[: self.num_statistics], outputs, targets)
        if self.config.metrics:
            self.asked.add(total[self.num_statistics :], outputs, targets, numbers)

    def examples(self, draws: np.ndarray) -> list[int]:
        """See `Problem`."""
        assert isinstance(self.order, BatchOrder)
        return [self.order.examples(worker, drawn) for worker, drawn in enumerate(draws.tolist())]

    @abstractmethod
    def add_statistics(self, total: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Add the statistics of test examples, outputs [b, ...] for targets [b, ...], to total [S], in place."""

    def init(self) -> Tensor:
        """Return the initial model [P]; call it once."""
        x0, self._x0 = self._x0, self._x0[:0]
        return x0

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return the mean losses [r] of the batches and their gradients [r, P], by the passes of `execution`."""
        places = range(len(self.workers)) if workers is None else workers
        began = time.perf_counter()
        if workers is None and self.together and (draws == draws[0]).all():
            inputs, targets = self.batch_of(None, int(draws[0]))
        else:
            inputs, targets = _together(self._batches(places, draws.tolist()))
        self.data_s += time.perf_counter() - began
        if self.flipped:
            flip = [place in self.flipped for place in places]
            each = [self.data.num_classes - 1 - own if yes else own for own, yes in zip(targets, flip, strict=True)]
            targets = torch.stack(each) if isinstance(targets, Tensor) else each
        if isinstance(inputs, Tensor) or self.passes.takes_lists:
            return self._gradient(x, inputs, targets, draws, places)
        losses, g = x.new_empty(len(places)), torch.empty_like(x)
        groups: dict[Any, list[int]] = {}
        for j, one in enumerate(inputs):
            groups.setdefault(j if self.together else one.shape, []).append(j)
        for rows in groups.values():
            batch = torch.stack([inputs[j] for j in rows]), torch.stack([targets[j] for j in rows])
            losses[rows], g[rows] = self._gradient(x[rows], *batch, draws[rows], [places[j] for j in rows])
        return losses, g

    def prove(self, x: Tensor, draws: np.ndarray) -> None:
        """See `Problem`; the batch is that of the first draws."""
        if self.passes.execution == "loop":
            return
        first = int(draws.min())
        order = self.order if self.together else self._cut
        with closing(self.data.train_batches(order, self.workers, first, first + 1)) as batches:
            inputs, targets = next(batches)
        self.passes, notes = self.execution.proven(self.workload, self.passes, x, self._as_exact(inputs), targets)
        self.facts, self.notes = {**self.facts, "execution": self.passes.execution}, (*self.notes, *notes)

    def _cut(self, draw: int) -> Tensor:
        """Return the samples of all local workers, cut to the smallest batch size: [k, B]."""
        rows = [self.order.row(i, draw) for i in range(len(self.workers))]
        return torch.stack([row[: min(map(len, rows))] for row in rows])

    def _gradient(
        self, x: Tensor, inputs: Any, targets: Any, draws: np.ndarray, places: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        def seed(j: int) -> None:
            worker = self.workers[places[j]]
            foreign = self.models.foreign or is_foreign_loss(self.loss)
            seed_draws(self.device, self.seed, worker, int(draws[j]), foreign=foreign)

        with self._named("in its passes"):
            computed = self.passes(x, self._as_exact(inputs), targets, places, seed)
        if self.models.unused:
            names, self.models.unused = self.models.unused, ()
            told = ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
            note = f"no gradient in the first step, which counts as zero (momentum and weight decay act): {told}"
            self.notes = (*self.notes, note)
        return computed

    @contextmanager
    def _named(self, passes: str) -> Iterator[None]:
        """Raise errors of foreign code within the context as a ConfigError that names the model and the code
        position."""
        try:
            yield
        except (RuntimeError, AttributeError, TypeError, ValueError, LookupError) as error:
            if not self.models.foreign or isinstance(error, ConfigError | torch.OutOfMemoryError):
                raise
            self.models.check()
            again = "second time" in str(error)
            hint = ": keep no graph of an earlier step in a buffer or an attribute (detach)" if again else ""
            raise ConfigError(
                f"model={self.config.model.name} cannot be trained ({blame.place(error) or passes}): "
                f"{blame.sentence(error)}{hint}."
            ) from error

    def _as_exact(self, inputs: Any) -> Any:
        """Cast numbers to the precision of the run; tokens are unchanged."""
        if isinstance(inputs, list):
            return [self._as_exact(one) for one in inputs]
        return inputs.to(self.dtype) if isinstance(inputs, Tensor) and inputs.is_floating_point() else inputs

    def suspects(self) -> tuple[str, ...]:
        """Return sentences on training or test examples that are not finite."""
        return self.data.not_finite()

    def keep_seconds(self) -> list[float] | None:
        """Return the seconds of the passes, if workers compute one by one."""
        if not self.passes.takes_lists:
            return None
        self.passes.seconds = []
        return self.passes.seconds

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Return the statistics of the test examples, for local workers' own models: [r, S]."""
        places = list(range(len(self.workers)) if workers is None else workers)
        self.models.bind(x)
        at_once = max(1, _COPIED_BYTES // max(1, x[0].nbytes)) if self.models.foreign else len(places)
        if scope.local:
            at_once = 1
        statistics = []
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            modules = {f"worker {self.workers[i]}": self.models.for_tests(i) for i in some}
            statistics.append(self._test(modules, self._local(scope, some[0]) if scope.local else scope, 0, 1))
        return torch.cat(statistics)

    def average_statistics(self, x: Tensor, part: int, parts: int, scope: Scope = WHOLE) -> Tensor:
        """Return the same for one averaged model [P] on this part's batches of the test examples: [S]."""
        with self.average.at(x, self._statistics_batches) as models:
            model = {"averaged model": models.for_tests(0)}
            if not scope.local:
                return self._test(model, scope, part, parts)[0]
            each = [self._test(model, self._local(scope, i), 0, 1) for i in range(len(self.workers))]
            return torch.cat(each).sum(0)

    def _local(self, scope: Scope, i: int) -> Scope:
        """Return the test set of local worker i, or its first examples, which are in a random order."""
        return scope._replace(numbers=self.local_tests[self.workers[i]][: scope.examples])

    @cached_property
    def test_numbers(self) -> Tensor:
        """Return the numbers of the test examples of `evaluation.part`, in their order."""
        return torch.from_numpy(self.config.evaluation.numbers(self.data.num_test))

    @cached_property
    def local_tests(self) -> list[Tensor]:
        """Return the numbers of the test examples of each worker: those of its groups, or see `own_test_set`."""
        counts = class_counts(self.data.train_labels, self.indices, self.data.num_classes)
        labels, numbers, each = self.data.test_labels(), self.test_numbers.numpy(), list[np.ndarray]()
        for worker, own in enumerate(counts):
            held = np.empty(0, dtype=np.int64)
            if self.groups is not None and self.groups.test is not None:
                held = np.flatnonzero(np.isin(self.groups.test[numbers], self.groups.train[self.indices[worker]]))
                held = numpy_generator(self.seed, "local test set", worker).permutation(held)
            each.append(held if len(held) else own_test_set(own, labels[numbers], self.seed, worker))
        return [self.test_numbers[places] for places in each]

    def names(self) -> dict[str, list[str]]:
        """Return the names of the classes, or sources, and of the groups."""
        names = {self.dealt: list(self.config.data.inspect().names)}
        return names if self.groups is None else names | {"group": self.groups.names}

    def save_tables(self, directory: Path) -> None:
        """Write partition.csv, the number of examples per class (or source) and worker, and local_tests.csv, the same
        for the workers' own test sets, if there are any."""
        counts = class_counts(self.data.train_labels, self.indices, self.data.num_classes)
        groups = self.groups and [[self.groups.names[g] for g in np.unique(self.groups.train[i])] for i in self.indices]
        save_table(counts, directory / "partition.csv", self.dealt, groups)
        if self.split != "global":
            own = [numbers.numpy() for numbers in self.local_tests]
            counts = class_counts(self.data.test_labels(), own, self.data.num_classes)
            save_table(counts, directory / "local_tests.csv", self.dealt)

    def model_states(self) -> list[dict[str, Any]]:
        """Return buffers, frozen parameters and extra state of each local worker's module."""
        return self.models.state()

    state = model_states

    def load_state(self, state: list[Any]) -> None:
        """See `Problem.load_state`."""
        self.models.load_state(state)

    def averaged(self, mean: Tensor, x: Tensor, net: Network, members: Tensor | None = None) -> Tensor:
        """Return what the model makes of the mean: see `Model.averaged`."""

        def rows(columns: slice) -> Tensor:
            each = net.gather(x[:, columns].contiguous())
            return each if members is None else each[members]

        return self.config.model.averaged(mean, self.layout(mean), rows)  # type: ignore[no-any-return]

    def average_states(self, net: Network, members: Sequence[int] | None = None) -> None:
        """See `Problem.average_states`."""
        if members is None:
            self.average.average(self.models.state(), net)
        else:
            self.average.average_of(members, self.models.state(), net)

    def take_over_states(self, donors: Mapping[int, Sequence[int]], net: Network) -> int:
        """See `Problem.take_over_states`."""
        if self.models.are_stateless:
            return 0
        means = self.average.means(list(donors.values()), self.models.state(), net)
        states = dict(zip(donors, means, strict=True))
        self.models.load_state([states.get(i) for i in self.workers])
        sizes = {i: sum(t.nbytes for t in each["tensors"].values() if t is not None) for i, each in states.items()}
        return sum(size * len(donors[i]) for i, size in sizes.items())

    def model_tensors(self, x: Tensor, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the module's `state_dict`, on the CPU. For the averaged model, batch statistics are recomputed on
        training images."""
        if state is None:
            with self.average.at(x, self._statistics_batches) as models:
                (state,) = models.state()
        return self.average.state_dict(x, state)

    def layout(self, x: Tensor) -> RowLayout:
        """Return the layout of the module's parameters."""
        return RowLayout(tuple(self.models.names), tuple(map(tuple, self.models.shapes)))

    def begin_with(self, tensors: Mapping[str, Any]) -> Tensor:
        """See `Problem.begin_with`."""
        try:
            x0, state = self.average.begun_with(tensors, self.models.num_parameters)
        except ConfigError as error:
            raise ConfigError(
                f"init={self.config.init} is a run of a model other than model={self.config.model.name}: {error}"
            ) from None
        self.models.load_state([state] * len(self.workers))
        return x0

    def close(self) -> None:
        """Stop the loaders."""
        for stream in self._streams.values():
            stream.close()
        self.data.close()

    def batch_of(self, i: int | None, draw: int) -> Batch:
        """Return the batch [1, B, ...] of local worker i, whatever the draws of the others; None: [k, B, ...] of all
        workers.

        Batches of consecutive draws are prefetched.
        """
        if i not in self._streams:
            order, workers = (self.order, self.workers) if i is None else (self.order.of(i), self.workers[i : i + 1])
            self._streams[i] = _Stream(lambda start: self.data.train_batches(order, workers, start, 2**62))
        return self._streams[i](draw)

    def _batches(self, places: Sequence[int], draws: Sequence[int]) -> list[Batch]:
        """Return the batches of local workers at different draws, in their order: one per worker, or all in one."""
        if not self.data.drawn_apart or not isinstance(self.order, BatchOrder):
            return [self.batch_of(i, draw) for i, draw in zip(places, draws, strict=True)]
        rows = [self.order.row(i, draw) for i, draw in zip(places, draws, strict=True)]
        numbers = [self.workers[i] for i in places]
        if len({len(row) for row in rows}) == 1:
            return [self.data.drawn(torch.stack(rows), numbers, draws)]
        each = zip(rows, numbers, draws, strict=True)
        return [self.data.drawn(row[None], [number], [draw]) for row, number, draw in each]

    def _statistics_batches(self) -> Iterator[Tensor]:
        """Yield training examples of all workers, always the same ones, in batches of about the same size."""
        used, wanted = torch.from_numpy(np.sort(np.concatenate(self.indices))), self.statistics_examples
        generator = torch_generator("cpu", self.seed, "batch statistics")
        picks = used[torch.randint(len(used), (1, wanted), generator=generator)]
        batches = picks.tensor_split(-(-wanted // _STATISTICS_BATCH_SIZE), dim=1)
        for inputs, _ in self.data.train_batches(batches.__getitem__, range(1), 0, len(batches)):
            yield self.memory_format(self._as_exact(inputs[0]))

    def _test(self, modules: dict[str, torch.nn.Module], scope: Scope, part: int, parts: int) -> Tensor:
        """Return the statistics of this part's batches of the test examples: [modules, S].

        All modules get the same batches, with the same draws: equal models have equal statistics. Each gets a copy,
        which it may overwrite.
        """
        with evaluating(*modules.values()):
            return self._tested(modules, scope, part, parts)

    def _tested(self, modules: dict[str, torch.nn.Module], scope: Scope, part: int, parts: int) -> Tensor:
        """Return the same with modules in eval mode.

        A forward pass has at most the fastest number of examples (`forward_examples`), or those of a step where the
        outputs of more take a gigabyte.
        """
        totals = torch.zeros(len(modules), self.num_summed, dtype=torch.float64, device=self.device)
        chosen, size = self._chosen(scope), self.config.evaluation.batch_size
        places = chosen.split(size)[part::parts]
        with self.config.evaluation.precision.testing(self.device):
            batches = self.data.test_batches(size, chosen, part, parts)
            for number, ((inputs, targets), numbers) in enumerate(zip(batches, places, strict=True)):
                inputs = self.memory_format(self._as_exact(inputs))
                for total, (name, module) in zip(totals, modules.items(), strict=True):
                    scope.tell(f"evaluating {name}, batch {number + 1} of {len(places)}")
                    seed_draws(self.device, self.seed, part + number * parts, purpose="evaluation")
                    pieces = (each.split(self.forward_examples) for each in (inputs.clone(), targets, numbers))
                    for some, their, which in zip(*pieces, strict=True):
                        self.add(total, self._outputs(module, some), their, which)
        return totals.cpu()

    def _outputs(self, module: torch.nn.Module, inputs: Any) -> Tensor:
        """Return the outputs of a forward pass, in the precision of the run."""
        with default_dtype(self.dtype), self._named("in an evaluation"):
            return module(inputs).to(self.dtype)  # type: ignore[no-any-return]

    def _chosen(self, scope: Scope) -> Tensor:
        """Return the numbers of the test examples of an evaluation, always the same for the same scope."""
        if scope.numbers is not None or scope.examples is None:
            return self.test_numbers if scope.numbers is None else scope.numbers
        generator = torch_generator("cpu", self.seed, "test examples")
        picks = torch.randperm(len(self.test_numbers), generator=generator)[: scope.examples]
        return self.test_numbers[picks].sort().values


def _together(batches: Sequence[Batch]) -> Batch:
    """Return the batches of several workers as one, if they have the same shape; otherwise as lists."""
    if len(batches) == 1:
        return batches[0]
    inputs, targets = (list(each) for each in zip(*batches, strict=True))
    if all(isinstance(one, Tensor) for one in inputs) and len({one.shape for one in inputs}) == 1:
        return torch.cat(inputs), torch.cat(targets)
    return [one for each in inputs for one in each], [one for each in targets for one in each]


class _Stream:
    """A stream of batches by draw number; consecutive ones come from a prefetching iterator."""

    def __init__(self, batches_from: Callable[[int], Batches]) -> None:
        self._batches_from, self._next = batches_from, -1
        self._batches: Batches | None = None

    def __call__(self, draw: int) -> Batch:
        if draw != self._next or self._batches is None:
            self.close()
            self._batches = self._batches_from(draw)
        self._next = draw + 1
        return next(self._batches)

    def close(self) -> None:
        """Stop the prefetching."""
        if self._batches is not None:
            self._batches.close()
