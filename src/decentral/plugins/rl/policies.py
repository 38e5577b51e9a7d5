"""The problem behind task=rl: PPO of one policy per worker in that worker's scenes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from decentral.compression.rows import RowLayout
from decentral.environments.environment import Running
from decentral.errors import ConfigError
from decentral.gradients.execution import Workload
from decentral.gradients.passes.layers import forward, shared
from decentral.gradients.passes.worker_models import WorkerModels, flat
from decentral.gradients.precision import float32
from decentral.partition.partition import class_counts, save_table
from decentral.plugins.rl.rollouts import Acting, PPOLoss, Rollouts, Scale, likeliest, sample
from decentral.randomness import normal, numpy_generator, seeded, uniform
from decentral.registry import components
from decentral.store.metrics import Metric
from decentral.tasks.task import WHOLE, Problem, Scope, TaskConfig

if TYPE_CHECKING:
    from decentral.plugins.rl.tasks.rl import RL

_SCALED_BY = 2048
"""Number of frames of the random policy that determine the standardization of observations."""
_TESTS_KEPT = 4


class PolicyOptimization(Problem):
    """Gradients of PPO's loss at models that are views of the rows; `tasks.rl` defines a draw."""

    def __init__(self, task: RL, config: TaskConfig, workers: range, device: torch.device) -> None:
        self.task, self.config, self.workers, self.seed, self.device = task, config, workers, config.seed, device
        self.env, self.dtype = config.env, config.precision.dtype
        self.info = config.env.inspect()
        self.labels = config.env.kinds()
        self.indices = config.partition.indices(self.labels, config.num_workers, config.seed)
        with seeded(config.seed, "initial model"):
            template = config.model.build(self.info).to(self.dtype)
        self.models = WorkerModels(template, len(workers), device)
        self.writes = self.models.foreign
        self.memory = int(getattr(template, "memory", 0))
        self.execution = components("gradients")[config.execution]()
        normalise = self.info.normalises if task.normalise is None else task.normalise
        self.loss = PPOLoss(self.info.continuous, task.clip, task.value_weight, task.entropy_weight, task.clip_value)
        self.workload = Workload(self.models, self._batch_shape(), config.precision, self.loss)
        found = shared(self.workload)
        self._layers = None if isinstance(found, str) else found[0]
        self.passes = self.execution.passes(self.workload)
        self.facts = {"execution": self.passes.execution}
        running = config.env.open([self.indices[worker] for worker in workers], task.num_envs)
        self.rollouts = Rollouts(
            running,
            task,
            self.info,
            workers,
            batch_size=config.batch_size,
            memory=self.memory,
            seed=config.seed,
            dtype=self.dtype,
            normalises=normalise,
        )
        self.R = task.draws_per_rollout(config.batch_size)
        self.steps_per_epoch = float(self.R)
        if normalise:
            self.rollouts.scale = self._scale()
        self.metrics = (
            *config.env.metrics,
            Metric("test", "return", larger_is_better=True),
            Metric("test", "episode_length", larger_is_better=None),
            Metric("train", "frames", larger_is_better=None),
        )
        self._x0 = flat(template).to(device)
        self._tests: dict[tuple[int, bytes], Running] = {}

    def init(self) -> Tensor:
        """Return the initial model [P]; call it once."""
        x0, self._x0 = self._x0, self._x0[:0]
        return x0

    def gradient(self, x: Tensor, draws: np.ndarray, workers: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Return PPO's losses [r] and gradients [r, P], after workers with a due rollout have collected it.

        A worker collects rollout floor(draw / R) unless it holds it: the gradient of a draw within a rollout depends on
        earlier draws, which `state` stores.
        """
        places = range(len(self.workers)) if workers is None else workers
        began, numbers = time.perf_counter(), draws // self.R
        due = np.flatnonzero(self.rollouts.held[list(places)] != numbers)
        if len(due):
            collecting = [places[j] for j in due.tolist()]
            at = x if len(due) == len(places) else x[torch.from_numpy(due)]
            with float32(self.device):
                self.rollouts.collect(self._acting(at, collecting), collecting, numbers[due])
        inputs, targets = self.rollouts.batch(places, draws)
        self.data_s += time.perf_counter() - began
        return self.passes(x, inputs.to(self.device), targets.to(self.device), places, lambda j: None)

    def prove(self, x: Tensor, draws: np.ndarray) -> None:
        """See `Problem`; the batch is from the rollouts that workers hold, zeros at first, with noise."""
        if self.passes.execution == "loop":
            return
        inputs, targets = (each.to(self.device) for each in self.rollouts.batch(range(len(x)), draws))
        inputs = inputs + torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0)).to(inputs)
        self.passes, self.notes = self.execution.proven(self.workload, self.passes, x, inputs, targets)
        self.facts = {"execution": self.passes.execution}

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        """Return sums over the test episodes, for local workers' own models: [r, S], S = metrics of an episode + 3.

        The sums are the environment's metrics, the return, the length, and the number of episodes. The last number is
        the worker's frames so far.
        """
        places = list(range(len(self.workers)) if workers is None else workers)
        sums = self._test(x[places], self._scenes(scope), scope)
        frames = torch.from_numpy(self.rollouts.frames[places]).double()
        return torch.cat([sums, torch.stack([frames, torch.ones_like(frames)], dim=1)], dim=1)

    def average_statistics(self, x: Tensor, part: int, parts: int, scope: Scope = WHOLE) -> Tensor:
        """Return the same for one averaged model [P] in this part's scenes, and the frames of the local workers:
        [S]."""
        sums = self._test(x[None], self._scenes(scope)[part::parts], scope)[0]
        counts = torch.tensor([self.rollouts.frames.sum(), len(self.workers)], dtype=torch.float64)
        return torch.cat([sums, counts])

    def finish(self, statistics: Tensor) -> Tensor:
        """Return means over episodes, and frames of a worker: [..., S] -> [..., S - 2]."""
        episodes, frames, workers = statistics[..., -3:].unbind(-1)
        return torch.cat([statistics[..., :-3] / episodes[..., None], (frames / workers)[..., None]], dim=-1)

    def save_tables(self, directory: Path) -> None:
        """Write partition.csv, the kinds of scenes of the workers, and observations.csv, the standardization of
        observations."""
        from decentral.store.files import csv_text, write_text

        counts = class_counts(self.labels, self.indices, int(self.labels.max()) + 1)
        save_table(counts, directory / "partition.csv", "kind")
        if self.rollouts.scale is not None:
            rows = zip(*(part.ravel().tolist() for part in self.rollouts.scale), strict=True)
            text = csv_text(["mean", "std"], [[repr(value) for value in row] for row in rows])
            write_text(directory / "observations.csv", text)

    def state(self) -> list[Any]:
        """Return each local worker's rollout, environment states and running moments."""
        return [self.rollouts.state(i) for i in range(len(self.workers))]

    def load_state(self, state: list[Any]) -> None:
        """See `Problem.load_state`."""
        for i, one in enumerate(state):
            self.rollouts.load_state(i, one)

    def model_tensors(self, x: Tensor, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return parameters [...] by name, those of the module's `state_dict`."""
        return dict(zip(self.models.names, self.models.views(x), strict=True))

    def layout(self, x: Tensor) -> RowLayout:
        """Return the layout of the module's parameters."""
        return RowLayout(tuple(self.models.names), tuple(map(tuple, self.models.shapes)))

    def begin_with(self, tensors: Mapping[str, Any]) -> Tensor:
        """See `Problem.begin_with`."""
        shapes = dict(zip(self.models.names, map(tuple, self.models.shapes), strict=True))
        if shapes != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
            raise ConfigError(
                f"init={self.config.init} is a run of a model other than model={self.config.model.name} on "
                f"env={self.env.name}, with other names or shapes of tensors: give a run of the same model."
            )
        return torch.cat([tensors[name].reshape(-1) for name in self.models.names]).to(self.device, self.dtype)

    def close(self) -> None:
        """Close the environments."""
        for running in (self.rollouts.running, *self._tests.values()):
            running.close()

    def _batch_shape(self) -> tuple[int, ...]:
        """Return the shape of a worker's model input in a step."""
        if not self.memory:
            return self.info.batch_shape(self.config.batch_size)
        T = self.task.rollout_steps
        return self.config.batch_size // T, T * (int(np.prod(self.info.shape)) + 1) + self.memory

    def _acting(self, x: Tensor, places: Sequence[int]) -> Acting:
        """Return the policies of these workers at x [r, P], side by side if their layers support it: see `Acting`."""
        if self._layers is None:
            return self._one_by_one(x, places)
        layers, parameters = self._layers, self.models.views(x)

        def outputs(observed: Tensor, memory: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
            observed = observed.to(self.device, self.dtype)
            if not self.memory:
                return forward(layers, observed, parameters).cpu(), memory
            pieces = torch.cat([observed.flatten(2), begins.to(observed)[..., None], memory.to(observed)], dim=-1)
            recurrent: Any = layers[0]
            found, memory = recurrent.remembering(pieces, parameters)
            return found[:, :, 0].cpu(), memory.cpu()

        return outputs

    def _one_by_one(self, x: Tensor, places: Sequence[int]) -> Acting:
        """Return the same for policies with unknown layers."""
        self.models.bind(x, places)

        def outputs(observed: Tensor, memory: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
            observed = observed.to(self.device, self.dtype)
            each = [self.models.modules[i](seen) for i, seen in zip(places, observed, strict=True)]
            return torch.stack(each).cpu(), memory

        return outputs

    def _scenes(self, scope: Scope) -> np.ndarray:
        """Return the scenes of an evaluation, always the same ones, in their order."""
        scenes = np.arange(self.info.num_test)
        if scope.examples is None:
            return scenes
        chosen = numpy_generator(self.seed, "test scenes").permutation(scenes)[: scope.examples]
        return np.sort(chosen)

    def _test(self, x: Tensor, scenes: np.ndarray, scope: Scope) -> Tensor:
        """Return sums over an episode in each of these scenes, for models x [r, P]: [r, S - 2] float64, see
        `worker_statistics`."""
        sums = torch.zeros(len(x), len(self.env.metrics) + 3, dtype=torch.float64)
        if len(scenes) == 0:
            return sums
        at_once = self.env.tests_at_once(len(scenes))
        with torch.no_grad(), float32(self.device):
            for first in range(0, len(x), at_once):
                rows = slice(first, first + at_once)
                scope.tell(f"evaluating model {first + 1} of {len(x)}")
                sums[rows] = torch.from_numpy(self._episodes(x[rows], scenes))
        return sums

    def _episodes(self, x: Tensor, scenes: np.ndarray) -> np.ndarray:
        """Return the same for a few models, side by side: [r, S - 2]."""
        r, N, continuous = len(x), len(scenes), self.info.continuous
        places, key = range(r), (r, scenes.tobytes())
        if key not in self._tests:  # environments are opened once
            if len(self._tests) >= _TESTS_KEPT:
                self._tests.pop(next(iter(self._tests))).close()
            self._tests[key] = self.env.open_tests(r, scenes)
        running = self._tests[key]
        chances = np.tile(self.env.test_chances(scenes), (r, 1, 1))
        running.begin(places, chances)
        outputs = self._acting(x, places)
        memory, begins = torch.zeros(r, N, self.memory, dtype=self.dtype), torch.ones(r, N, dtype=self.dtype)
        totals, over, t = np.zeros((r, N, len(self.env.metrics) + 2)), np.zeros((r, N), dtype=bool), 0
        while not over.all():
            seen = running.observe(places)
            scale = self.rollouts.scale
            given, memory = outputs(torch.from_numpy(seen if scale is None else scale(seen)), memory, begins)
            if self.task.greedy:
                action = likeliest(given, continuous)
            else:
                columns = np.arange(self.rollouts.columns)
                drawn = (normal if continuous else uniform)(self.seed, "test actions", scenes[:, None], t, columns)
                action, _ = sample(given, continuous, torch.from_numpy(drawn).to(self.dtype).expand(r, -1, -1))
            taken = action.double().numpy() if continuous else action[..., 0].long().numpy()
            moves = running.step(places, taken, chances)
            totals[..., -2] += np.where(over, 0.0, moves.rewards)
            totals[..., -1] += ~over
            totals[..., :-2] += np.where((moves.ended & ~over)[..., None], moves.facts, 0.0)
            over |= moves.ended
            begins = torch.from_numpy(moves.ended).to(self.dtype)
            t += 1
        return np.concatenate([totals.sum(1), np.full((r, 1), float(N))], axis=1)

    def _scale(self) -> Scale:
        """Return means and standard deviations of the random policy's observations in all training scenes. They are the
        same for all workers, since averaged models need equal inputs."""
        env, E = self.env, self.task.num_envs
        running = env.open([np.arange(self.info.num_train)], E)
        random, places, seen = numpy_generator(self.seed, "scale of observations"), range(1), []
        running.begin(places, random.random((1, E, Running.num_chances)))
        for _ in range(-(-_SCALED_BY // E)):
            seen.append(running.observe(places)[0])
            if self.info.continuous:
                taken: np.ndarray = random.standard_normal((1, E, self.info.num_actions))
            else:
                taken = random.integers(self.info.num_actions, size=(1, E))
            running.step(places, taken, random.random((1, E, Running.num_chances)))
        running.close()
        frames = np.concatenate(seen).astype(np.float64)
        return Scale(frames.mean(0), np.sqrt(frames.var(0) + 1e-8))
