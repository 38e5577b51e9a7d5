"""The output of a run's leader; on other processes, access to their parts of checkpoints only."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from decentral.algorithms.features import Feature
from decentral.config.prepared import Prepared
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.store import RunStore, Status
from decentral.store.checkpoints import Written
from decentral.store.failures import record
from decentral.store.files import csv_text, write_json, write_text
from decentral.store.provenance import collect
from decentral.store.run_store import DirectoryLost
from decentral.terminal.console import say
from decentral.terminal.progress import Progress, progress
from decentral.training import operations
from decentral.training.evaluation import Evaluation, recorded
from decentral.training.facts import add_metrics, chosen_rows, final_facts, notes_of
from decentral.training.loggers.logger import Guarded
from decentral.training.loggers.stored import remember
from decentral.training.loggers.stored import shown as shown_to_logger

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.training.run import Run


@dataclass
class Recorder:
    """The store, progress and logger of one run."""

    run: Prepared
    world: World
    store: RunStore
    last_checkpoint: float
    sink: Guarded | None = None
    begun: bool = False
    without_number: bool = False
    operations_bytes: int = 0

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.run.config

    @classmethod
    @contextmanager
    def open(cls, run: Prepared, world: World) -> Iterator[Recorder]:
        """Open the run's directory: the leader first, with a lock, then the others."""
        if world.leader:
            store = RunStore.open(run.directory, run.id, run.text)
            world.barrier()
        else:
            world.barrier()
            store = RunStore.view(run.directory)
        recorder = cls(run, world, store, time.monotonic())
        try:
            yield recorder
        except BaseException as error:
            recorder.fail(error)
            raise
        finally:
            store.close()

    def begin(self, r: Run) -> None:
        """Write the run's configuration and facts, before the first step."""
        if not self.world.leader:
            return
        told = "execution=loop", f"data={self.config.data.name}: ", f"model={self.config.model.name} has "
        for message in [*r.rejected, *(note for note in notes_of(r) if any(words in note for words in told))]:
            say(message)
        self.begun = True
        self.store.set_status(Status.running, step=r.start, epoch=r.start / r.problem.steps_per_epoch)
        facts = collect([str(self.world.device)], self.world.size)
        if self.config.name is not None:
            facts["identity"] = self.run.identity
        by_pace = Feature.synchrony not in r.algorithm.supports or (
            self.config.network.measure and r.net.traffic.clock is None
        )
        if by_pace and self.world.size > 1:
            facts["asynchronous"] = True
        self.store.write_provenance(facts | {"restarts": self.store.restarts} | dict(r.problem.facts) | r.net.facts)
        compression_stats = getattr(r.stepper.state, "compression_stats", None)
        compresses = compression_stats is not None and compression_stats.numel() > 0
        self.store.describe([*recorded(r.problem, compresses), *self.config.privacy.metrics])
        r.problem.save_tables(self.store.path)
        workers = self.config.topology.worker_names(r.net.n) if Feature.topology in r.algorithm.supports else []
        if names := {what: each for what, each in {**r.problem.names(), "worker": workers}.items() if each}:
            write_json(self.store.path / "names.json", names)
        if own := self.run.own:
            columns = [range(r.net.n), *(values.tolist() for values in own.values())]
            write_text(self.store.path / "workers.csv", csv_text(["worker", *own], zip(*columns, strict=True)))
        if self.config.logger.name != "none":
            self.sink = Guarded(self.config.logger, self.run.id, self.run.values, self.store.path)

    @contextmanager
    def progress(self, r: Run) -> Iterator[Progress]:
        """Show the leader's progress bar (or lines); nothing on other processes."""
        c = self.config
        on = f" on {c.topology.name}" if Feature.topology in c.algo.supports else ""
        title = f"{c.algo.name}{on}, {c.num_workers} workers"
        with progress(r.total_steps, title, enabled=c.progress, leader=self.world.leader) as shown:
            if r.start:
                shown.line(f"resumed at step {r.start} of {r.total_steps}")
            yield shown

    def checkpoint_due(self, evaluated: bool) -> bool:
        """Return whether a checkpoint is due by the leader's clock; if checkpoint_every_s=0, after each evaluation."""
        if not self.world.leader:
            return False
        every_s = self.config.checkpoint_every_s
        return time.monotonic() - self.last_checkpoint >= every_s if every_s else evaluated

    def record(self, r: Run, t: int, found: Evaluation, shown: Progress) -> None:
        """Append an evaluation to the metrics and show it."""
        if not self.world.leader:
            return
        epoch = t / r.problem.steps_per_epoch
        place = {
            "step": t,
            "epoch": epoch,
            "wall_s": round(r.times["steps"], 6),
            "bytes_sent": r.stepper.traffic.bytes_sent,
        }
        if r.stepper.simulated_s is not None:
            place["simulated_s"] = round(r.stepper.simulated_s, 9)
        if (tokens := self.config.tokens_of(t)) is not None:
            place["tokens"] = tokens
        rows = found.rows(**place)
        if r.ends_at(t):
            rate = self.config.schedule.rates(r.problem.steps_per_epoch, r.total_steps)
            rates = (self.config.lr * rate(step) for step in range(t))
            rows += [place | row for row in self.config.privacy.account(self.config, rates, self.store.path)]
        self.store.append([*rows, *chosen_rows(r.stepper.facts(), place)])
        if self.sink is not None:
            self.sink.log(t, shown_to_logger(self.run, rows, r.problem.steps_per_epoch))
        metric = found.metrics[0]
        self.without_number = metric.own and not math.isfinite(found.worst(0))
        texts = {
            "loss": f"{found.train_losses.mean().item():.3g}" if len(found.train_losses) else "",
            "worst": metric.format(found.worst(0)),
            "averaged": metric.format(found.averaged[0].item()),
        }
        told = "  ".join(f"{name} {text}" for name, text in texts.items() if text and name != "loss")
        told += f"  train loss {texts['loss']}" if texts["loss"] else ""
        where = f"step {t}/{r.total_steps}  epoch {epoch:.1f}"
        if r.simulated:
            where += f"  simulated {r.simulated}"
        told = f"{where}  {metric.name.replace('_', ' ')}: {told}"
        shown.milestone(told, t, epoch, simulated=r.simulated, **texts)

    def commit(self, r: Run, t: int, written: list[Written]) -> None:
        """Commit the parts written by all processes as a checkpoint."""
        self.last_checkpoint = time.monotonic()
        if not self.world.leader:
            return
        parts = {f"process{rank}": part for rank, part in enumerate(written)}
        meta = {
            "wall_s": r.times["steps"],
            "bytes_sent": r.net.traffic.bytes_begun,
            "messages_sent": r.net.traffic.messages_begun,
            "times_s": r.spent_s,
            "evaluated_s": r.evaluated_s,
            "operations": self.operations_bytes,
        }
        self.store.commit_checkpoint(t, parts, meta)
        self.store.set_status(Status.running, step=t, epoch=t / r.problem.steps_per_epoch)

    def end(self, r: Run, status: Status, step: int) -> None:
        """Write the final status."""
        own = self.config.batch_size_per_worker or self.config.steps_per_worker
        draws = r.net.gather(torch.from_numpy(r.oracle.draws)[:, None])[:, 0].numpy() if own else np.empty(0)
        if not self.world.leader:
            return
        with self.store.in_place():
            for extension in r.stepper.extensions:
                extension.store(self.store.path, r.stepper)
            if (table := self.store.path / "local_tests.csv").exists():
                add_metrics(table)
        if r.stepper.simulated_s is not None:
            self._keep_timeline(r, status)
        notes = []
        if self.without_number:
            notes.append(f"metrics={self.config.metrics[0]} judges the run but is not finite")
        facts = final_facts(r, status, step, notes)
        if own:
            facts["examples_per_worker"] = r.problem.examples(draws)
        self.store.set_status(status, step=step, epoch=step / r.problem.steps_per_epoch, **facts)
        if status in (Status.done, Status.diverged):
            self.store.remove_checkpoints()
            self.store.remove_replaced()
        if self.sink is not None:
            self.sink.close(status.value)
            if not self.sink.failed:
                whole = status in (Status.done, Status.diverged)
                remember(self.run, self.sink.place, whole)

    def _keep_timeline(self, r: Run, status: Status) -> None:
        """Write the beginning of the timeline to a file, if it follows from the configuration."""
        decides = self.config.compress.adapts or self.config.network.measure
        if self.run.kind.has_clock and not decides and status in (Status.done, Status.diverged):
            from decentral.cluster.timeline import write_spans
            from decentral.training.timing import spans_of

            with self.store.in_place():
                size, per_epoch = r.stepper.models.shape[1], r.problem.steps_per_epoch
                write_spans(self.store.path, spans_of(self.run, r.total_steps, size, per_epoch))

    def keep_outputs(self, r: Run) -> None:
        """Store the final outputs of the averaged model; all processes call this."""
        with self.store.in_place() if self.world.leader else nullcontext():
            r.problem.save_outputs(r.stepper.models, r.net, self.world, self.store.path)

    def keep_operations(self, r: Run) -> None:
        """Append all processes' operations since the last call; the next checkpoint stores the file's length."""
        if r.oracle.recorded is None:
            return
        parts = self.world.collect_any(operations.packed(r.oracle.recorded.take()))
        if self.world.leader:
            with self.store.in_place():
                self.operations_bytes = operations.append(parts, self.store.path)

    def fail(self, error: BaseException) -> None:
        """Record in the status why the run failed; a run refused before its start has no directory."""
        over = isinstance(error, KeyboardInterrupt) and RunStore.finished(self.store.path, self.run.id)
        if not self.world.leader or over:
            return
        with suppress(OSError, DirectoryLost):  # on a full disk the user must see the original error
            refused = isinstance(error, ConfigError) and not self.begun
            if refused and self.store.new:
                self.store.abandon()
            elif not (refused and self.store.take_back()):  # then it remains finished, as before rerun=true
                record(self.store, error)
        if self.sink is not None:
            self.sink.close(Status.interrupted if isinstance(error, KeyboardInterrupt) else Status.failed)
