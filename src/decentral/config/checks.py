"""Checks of a configuration before a run starts; nothing here imports torch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, in_rounds
from decentral.algorithms.features import Feature, refusal, require
from decentral.availability.availability import AlwaysPresent, OnLeave, OnReturn
from decentral.cluster.cluster import VirtualCluster
from decentral.compression.dense import NoCompression
from decentral.compression.rows import AcceptedCompression
from decentral.config.identity import init_directory
from decentral.config.schema import Config, EarlyStop, Simulate
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.host.torchrun import under_torchrun
from decentral.registry import components
from decentral.store.models import FILE, stored_facts
from decentral.tasks.supervised import SupervisedTask
from decentral.topology.communication import Communication
from decentral.topology.present import Absent, Weights
from decentral.topology.requirements import check
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from collections.abc import Callable

    from decentral.algorithms.algorithm import Algorithm
    from decentral.compression.compressor import Compressor
    from decentral.topology.rounds import Rounds

_ROUNDS_LOOKED_AT = 256


def _steps_of(config: Config, tokens: int) -> int:
    """Return the number of steps with at most this many tokens. Raises ConfigError if there is none."""
    each = config.tokens_of(1)
    if each is None:
        raise ConfigError(f"tokens={tokens} needs task=language, not task={config.task.name}: use epochs or steps.")
    steps = tokens // each
    if config.steps not in (None, steps):
        raise ConfigError(f"tokens={tokens} is {steps} steps, which contradicts steps={config.steps}: use one of them.")
    if not steps:
        raise ConfigError(
            f"tokens={tokens} is less than one step, which has {each:,} tokens: num_workers times batch_size times "
            "accumulate times data.longest."
        )
    return steps


def resolve(config: Config) -> Config:
    """Return the configuration with all task defaults resolved. Checks everything that does not need torch.

    Raises ConfigError for an impossible run: a topology that does not exist for the number of workers or does not
    satisfy the algorithm's needs, data that is missing or cannot be split over the workers, a model that is too large
    for the images, ...
    """
    every_epochs, every_s = config.evaluation.every_epochs, config.evaluation.every_simulated_s
    if every_epochs is not None and every_s is not None:
        raise ConfigError(
            f"evaluation.every_epochs={every_epochs:g} and evaluation.every_simulated_s={every_s:g} conflict: set one "
            "of them to null."
        )
    config = dataclasses.replace(config, num_workers=config.task.resolve_num_workers(config))
    if config.tokens is not None:
        config.steps = _steps_of(config, config.tokens)
    if config.early_stop.patience is not None:  # which counts evaluations
        config.evaluation.every_epochs = every_epochs or config.task.eval_every_epochs
    assert config.num_workers is not None
    if config.processes != "auto" and int(config.processes) > config.num_workers:
        raise ConfigError(
            f"processes={config.processes} is more than num_workers={config.num_workers}; use at most num_workers "
            "processes."
        )
    if config.precision not in (Precision.fp32, Precision.fp64) and "model" not in config.task.uses:
        raise ConfigError(
            f"precision={config.precision.name} applies to networks only, and task={config.task.name} always computes "
            "in float64: leave precision= out."
        )
    _check_evaluation(config)
    if config.init is not None and not stored_facts(init_directory(config)):
        raise ConfigError(
            f"init={config.init} has no readable {FILE} in {init_directory(config)}: give the directory or ID of a "
            "finished run that saved its models (save=final or save=best)."
        )
    _check_limits(config)
    if config.simulate is Simulate.training:
        config.task.check(config)
    config.cluster.check(config.num_workers)
    config.availability.check(config.num_workers)
    config.algo.check(config.num_workers, config.optim)
    check_time(config)
    config = _with_events(config)
    for feature, setting in _asked(config):
        if setting:
            require(config.algo, feature, setting)
    _check_own(config)
    check_compression(config)
    check_communication(config.algo, config.communication)
    _check_adversaries(config)
    rounds = config.rounds()
    weights_given = Feature.topology in config.algo.supports and config.topology.weights_given()
    check(rounds, config.algo.needs, config.algo.name, config.topology.name, weights_given)
    _check_losses(config)
    if not isinstance(config.availability, AlwaysPresent):
        _check_availability(config, rounds)
    config.logger.check()
    return config


def _asked(config: Config) -> list[tuple[Feature, str]]:
    """Return the features that a configuration may ask of its method, each with the setting that asks for it, or ''."""
    availability, drop = config.availability, config.network.drop_probability
    lost = f"network.drop_probability={drop:g}" if drop else ""
    rounds = "" if config.communication.plain else f"communication.{_first_key(config.communication)}"
    always, on_leave = isinstance(availability, AlwaysPresent), getattr(availability, "on_leave", OnLeave.keep)
    stale = getattr(availability, "on_return", None) is OnReturn.stale
    return [
        (Feature.training, "" if config.task.has_samples else f"task={config.task.name}"),
        (Feature.batches, "" if config.task.names_samples else f"task={config.task.name}"),
        (Feature.synchrony, config.network.limited),
        (Feature.synchrony, "network.measure=true" if config.network.measure else ""),
        (Feature.synchrony, config.cluster.changes if isinstance(config.cluster, VirtualCluster) else ""),
        (Feature.synchrony, (lost or rounds) if goes_by_itself(config) else ""),
        (Feature.timeline, "simulate=timeline" if config.simulate is Simulate.timeline else ""),
        (Feature.own_starts, f"task={config.task.name} with an x0 per worker" if config.task.own_starts() else ""),
        (Feature.own_rates, _per_worker(config, "lr")),
        (Feature.own_steps, _per_worker(config, "steps")),
        (Feature.message_loss, lost),
        (Feature.absence, "" if always or _free_running(config) else f"availability={availability.name}"),
        (Feature.stale_return, "availability.on_return=stale" if stale else ""),
        (Feature.corrections, "" if on_leave is OnLeave.keep else f"availability.on_leave={on_leave.name}"),
        (Feature.robust_mixing, _changed_mixing(config)),
    ]


def _per_worker(config: Config, key: str) -> str:
    """Return the values of `key`_per_worker as a setting; '' for none. Raises ConfigError if they are invalid."""
    if config.own(key) is None:
        return ""
    return f"{key}_per_worker=[{','.join(map(str, getattr(config, f'{key}_per_worker')))}]"


def _changed_mixing(config: Config) -> str:
    """Return the setting that changes the models sent to neighbors, or their mixing; '' for none."""
    if config.robust.name != "none":
        return f"robust={config.robust.name}"
    return "" if config.attack.name == "none" or config.attack.flips_labels else f"attack={config.attack.name}"


def _free_running(config: Config) -> bool:
    """Return whether fast workers of a run in simulated time take more gradients."""
    return goes_by_itself(config) and config.algo.free_running


def _with_events(config: Config) -> Config:
    """Set the number of steps to that of the given events, unless smaller. Raises ConfigError if a clock decides."""
    assert config.num_workers is not None
    algo = config.algo
    events = algo.given_events(config.num_workers) if isinstance(algo, AsynchronousAlgorithm) else []
    if not events:
        return config
    if isinstance(config.cluster, VirtualCluster) or config.processes not in ("auto", "1") or under_torchrun():
        raise ConfigError(
            f"algo.events={algo.events} prescribes the order of events in a single process: leave cluster= and "
            "processes= out."
        )
    if "model" in config.task.uses:
        raise ConfigError(
            f"algo.events={algo.events} takes one step per event, but task={config.task.name} counts epochs in "
            "gradients: use a task without epochs, such as task=quadratics or task=regression."
        )
    if config.steps is not None and config.steps > len(events):
        raise ConfigError(
            f"steps={config.steps} exceeds the {len(events)} events of algo.events={algo.events}: use fewer steps, or "
            "a longer file."
        )
    return dataclasses.replace(config, steps=config.steps or len(events))


def _check_own(config: Config) -> None:
    """Raise ConfigError for settings of each worker that the method, the task or the cluster cannot honor."""
    algo, task, steps = config.algo, config.task, config.local_steps()
    if config.batch_size_per_worker is not None and not task.own_batches:
        has = "samples its own batches" if "model" in task.uses else "has no batches"
        raise ConfigError(f"batch_size_per_worker cannot be used with task={task.name}, which {has}: leave it out.")
    compute = getattr(config.cluster, "compute", None)
    if config.batch_size_per_worker is not None and compute is not None and compute.passes:
        raise ConfigError(
            "batch_size_per_worker cannot be used with cluster.compute.distribution=measured, which assigns all "
            "workers the same measured times: give the time of one batch_size, such as "
            "cluster.compute.distribution=constant with mean_s."
        )
    if config.accumulate > 1 and compute is not None and compute.rollout_every is not None:
        raise ConfigError(
            f"accumulate={config.accumulate} cannot be used with cluster.compute.distribution=rollouts, which has a "
            "rollout before every rollout_every-th step: leave accumulate out, or use another distribution."
        )
    if steps is None:
        return
    said = _per_worker(config, "steps")
    if "model" in task.uses and not task.own_batches:
        raise ConfigError(f"{said} cannot be used with task={task.name}: use a supervised or convex task.")
    key = "algo.period_steps" if hasattr(algo, "period_steps") else "communication.every"
    if (largest := int(steps.steps.max())) > steps.every:
        raise ConfigError(f"{said} gives a worker {largest} steps, more than {key}={steps.every}: use {key}={largest}.")
    if config.record_operations:
        raise ConfigError(
            f"{said} cannot be used with record_operations=true, which records every worker's steps: leave one of "
            "them out."
        )


def _check_availability(config: Config, rounds: Rounds) -> None:
    """Raise ConfigError for absent workers where something has no rule for them."""
    algo, availability = config.algo, config.availability
    said = f"availability={availability.name} cannot be used with"
    if _free_running(config):
        _check_going_by_itself(availability, algo.name)
    if not isinstance(config.compress, NoCompression) and algo.takes is not AcceptedCompression.payloads:
        raise ConfigError(
            f"{said} compress={config.compress.name} and algo={algo.name}: leave compress= out, or use algo=choco or "
            "beer."
        )
    others = {
        "network.drop_probability": config.network.drop_probability,
        "network.measure": config.network.measure,
        "steps_per_worker": config.steps_per_worker,
        "record_operations": config.record_operations,
    }
    for key, value in others.items():
        if value:
            raise ConfigError(f"{said} {key}={value}: leave one of them out.")
    if availability.absent is not Absent.induced or Need.tree in algo.needs or Feature.topology not in algo.supports:
        return
    if config.communication.workers_per_machine > 1:
        raise ConfigError(
            "availability.absent=induced cannot be used with communication.workers_per_machine, which would split "
            "machines: use availability.absent=rerouted."
        )
    keeps_mean, weights = Need.doubly_stochastic in algo.needs, availability.weights
    if keeps_mean or weights is not Weights.auto:
        for round in range(min(rounds.period, _ROUNDS_LOOKED_AT)):
            if all(W.is_symmetric(1e-9) for W in rounds.mixing(round)):
                continue
            if keeps_mean:
                raise ConfigError(
                    f"availability.absent=induced cannot be used with algo={algo.name} and "
                    f"topology={config.topology.name}, because subgraphs of a directed graph do not preserve the "
                    "mean: use availability.absent=rerouted, or an undirected topology such as ring."
                )
            raise ConfigError(
                f"availability.weights={weights.name} needs an undirected graph, and topology={config.topology.name} "
                "is directed: leave it out, which keeps all mass among the present workers."
            )


def _check_adversaries(config: Config) -> None:
    """Raise ConfigError for attacks, or a robust mixing, that the method, the task or the rounds cannot have."""
    attack, algo, topology = config.attack, config.algo, config.topology.name
    assert config.num_workers is not None
    attack.check(config.num_workers)
    said = _changed_mixing(config)
    if attack.flips_labels and not config.task.has_classes:
        raise ConfigError(
            f"attack={attack.name} needs examples with classes, and task={config.task.name} has none: use another "
            "attack, such as sign_flip, or task=images."
        )
    if not said:
        return
    if not isinstance(config.compress, NoCompression):
        raise ConfigError(f"{said} needs uncompressed models: leave out compress={config.compress.name}.")
    if config.communication != Communication(every=config.communication.every):
        raise ConfigError(
            f"{said} needs plain neighbor-to-neighbor exchange: leave out "
            f"communication.{_first_key(config.communication)}."
        )
    check(config.rounds(), {Need.whole}, f"{algo.name} {said}", topology)


def _check_going_by_itself(availability: Any, algo: str) -> None:
    """Raise ConfigError for absences that free-running workers do not support."""
    if not availability.in_seconds:
        raise ConfigError(
            f"availability={availability.name} is defined in steps, but algo={algo} is asynchronous and has no common "
            "step: use one in simulated seconds, such as availability=sessions."
        )
    if availability.absent is not Absent.induced or availability.on_return is not OnReturn.stale:
        raise ConfigError(
            f"algo={algo} is asynchronous: workers use the remaining edges and return with their own models; add "
            "availability.absent=induced availability.on_return=stale."
        )
    if availability.detection_s is not None:
        raise ConfigError(
            f"availability.crash=true needs a synchronous method: algo={algo} is asynchronous and finishes every "
            "gradient that it starts; use availability.crash=false."
        )


def _check_losses(config: Config) -> None:
    if config.network.drop_probability and config.communication != Communication(every=config.communication.every):
        raise ConfigError(
            f"network.drop_probability={config.network.drop_probability:g} cannot be used with "
            f"communication.{_first_key(config.communication)}, because exchanges within machines and among all "
            "workers are reliable: leave one of them out."
        )


def _check_evaluation(config: Config) -> None:
    """Raise ConfigError for what is to be looked at where the task has no such thing."""
    _check_precision_of_tests(config)
    if config.evaluation.examples.isdigit() and config.task.num_examples(config) is None:
        raise ConfigError(
            f"evaluation.examples={config.evaluation.examples} needs test examples, and task={config.task.name} has "
            "none: leave it out."
        )
    if config.evaluation.split != "global" and not config.task.has_classes:
        raise ConfigError(
            f"evaluation.split={config.evaluation.split} needs test examples with classes, and "
            f"task={config.task.name} has none: leave it out, or use task=images or task=text."
        )
    if "data" not in config.task.uses and (column := getattr(config.partition, "column", None)) is not None:
        raise ConfigError(
            f"partition.column={column} needs data with examples, and task={config.task.name} has none: leave it out."
        )
    if config.evaluation.part != "all" and not isinstance(config.task, SupervisedTask):
        raise ConfigError(
            f"evaluation.part={config.evaluation.part} needs a task that trains a network on examples, such as "
            f"task=images: use evaluation.part=all with task={config.task.name}."
        )
    if config.metrics and not isinstance(config.task, SupervisedTask):
        raise ConfigError(
            f"metrics={config.metrics} needs a task that trains a network on examples, such as task=images: leave it "
            f"out with task={config.task.name}."
        )
    if config.early_stop.patience is None and config.early_stop != EarlyStop():
        raise ConfigError(
            f"early_stop.{_first_key(config.early_stop)} has no effect without early_stop.patience: give a number of "
            "evaluations, or leave it out."
        )


def _check_precision_of_tests(config: Config) -> None:
    """Raise ConfigError where nothing is tested on data by a network, or all is in float64."""
    precision = config.evaluation.precision
    if precision is Precision.fp32:
        return
    if not {"model", "data"} <= set(config.task.uses):
        raise ConfigError(
            f"evaluation.precision={precision.name} applies to networks with test data: leave it out with "
            f"task={config.task.name}."
        )
    if config.precision is Precision.fp64:
        raise ConfigError(
            f"evaluation.precision={precision.name} conflicts with precision=fp64, which computes everything in "
            "float64: leave one of them out."
        )


def _check_limits(config: Config) -> None:
    """Raise ConfigError for limited messages between processes if there are none, or if no worker waits for them."""
    if config.network.measure and config.simulate is Simulate.timeline:
        raise ConfigError("network.measure=true needs training, and simulate=timeline sends no messages: leave it out.")
    if config.processes == "1" or config.simulate is Simulate.timeline or is_virtual(config):
        config.network.check_several(1, has_clock(config))


def check_time(config: Config) -> None:
    """Raise ConfigError for settings that need simulated time, or synchronous steps, if there are none."""
    if config.simulate is Simulate.timeline:
        _check_timeline(config)
    if isinstance(config.cluster, VirtualCluster) and config.num_workers is not None:
        _check_cluster(config, config.cluster, config.num_workers)
    asked = {
        "stop_after_simulated_s": config.stop_after_simulated_s,
        "evaluation.every_simulated_s": config.evaluation.every_simulated_s,
    }
    for key, value in asked.items():
        if value is not None and not has_clock(config):
            alone = ", and one process" if Feature.synchrony not in config.algo.supports else ""
            raise ConfigError(f"{key}={value:g} needs simulated time: choose a cluster, such as cluster=even{alone}.")
    if config.availability.in_seconds and not has_clock(config):
        raise ConfigError(
            f"availability={config.availability.name} is defined in simulated seconds, but this run has no simulated "
            "time: choose a cluster, such as cluster=even, or an availability in steps, such as "
            "availability=persistent."
        )
    if config.record_operations and "model" not in config.task.uses:
        in_one = config.processes == "1" or is_virtual(config)
        if in_one or (config.processes == "auto" and config.task.useful_processes(config) == 1):
            raise ConfigError(
                "record_operations=true needs workers that run in parallel: use several processes, such as processes=4."
            )
    alone = f"trace={str(config.trace).lower()}" if config.trace else getattr(config.algo, "in_regions", "")
    if goes_by_itself(config) and alone and (config.processes not in ("auto", "1") or under_torchrun()):
        raise ConfigError(
            f"{alone} needs a single process with asynchronous methods such as algo={config.algo.name}: leave "
            "processes= out."
        )


def _check_cluster(config: Config, cluster: VirtualCluster, n: int) -> None:
    """Raise ConfigError for times to measure at the start, unless one process trains; and for changing links without
    synchronous steps or epochs."""
    times = cluster.gradient_times(n, config.seed)
    if times.passes and not (is_virtual(config) and config.simulate is Simulate.training):
        times.seconds(0, 1)
    epochs = None if config.simulate is Simulate.timeline else 1.0
    cluster.changing(n, config.seed, epochs)


def _check_timeline(config: Config) -> None:
    """Raise ConfigError for a timeline alone that does not say of which cluster, and of how many steps."""
    if not is_virtual(config):
        raise ConfigError(
            "simulate=timeline needs a virtual cluster: choose one, such as cluster=even, and leave processes= out."
        )
    if config.steps is None:
        raise ConfigError("simulate=timeline does not train, so it has no epochs: give steps=, such as 400.")
    if config.stop_after_simulated_s is not None:
        raise ConfigError(
            f"stop_after_simulated_s={config.stop_after_simulated_s:g} needs training, and simulate=timeline ends "
            "after steps=: leave it out."
        )
    if config.early_stop.patience is not None:
        raise ConfigError(
            f"early_stop.patience={config.early_stop.patience} needs training, and simulate=timeline does not "
            "evaluate: leave it out."
        )
    if warmup_epochs := getattr(config.compress, "warmup_epochs", 0):
        raise ConfigError(
            f"compress.warmup_epochs={warmup_epochs:g} counts epochs, but simulate=timeline has none: leave it out."
        )


def has_clock(config: Config) -> bool:
    """Return whether a run has simulated time: it has a virtual cluster, and its order of events does not depend on the
    pace of processes."""
    return isinstance(config.cluster, VirtualCluster) and (
        is_virtual(config) or Feature.synchrony in config.algo.supports
    )


def is_virtual(config: Config) -> bool:
    """Return whether a cluster is described, and one process has all workers."""
    alone = config.processes in ("auto", "1") and not under_torchrun()
    return isinstance(config.cluster, VirtualCluster) and alone


def goes_by_itself(config: Config) -> bool:
    """Return whether the workers of a run are programs in simulated time: then one process carries them all out.

    An asynchronous method that has no form in rounds is that without a cluster, too: all are equally fast.
    """
    algo = config.algo
    return isinstance(algo, AsynchronousAlgorithm) and (is_virtual(config) or not in_rounds(type(algo)))


def check_compression(config: Config) -> None:
    """Raise ConfigError if the algorithm cannot send what this compressor makes of rows, over these rounds."""
    algo: Algorithm = config.algo
    compress: Compressor = config.compress
    if isinstance(compress, NoCompression):
        return
    check_compressor(algo, compress)
    _check_decisions(config)
    check_compressed_rounds(algo, compress, config.communication, config.rounds, config.topology.name)


def check_compressor(algo: Algorithm, compress: Compressor) -> None:
    """Raise ConfigError if the algorithm cannot send what this compressor makes of rows."""
    if getattr(algo, "overlap_backward", False) and not compress.fills:
        raise ConfigError(
            f"algo.overlap_backward=true cannot be used with compress={compress.name}, which needs whole gradients: "
            "use compress=bf16, or leave one of them out."
        )
    if compress.suits(algo.takes):
        if not compress.error_feedback:
            require(algo, Feature.error_feedback, "compress.error_feedback=false")
        return
    all_of_them: dict[str, Any] = components("compression")
    others = [name for name, cls in all_of_them.items() if name != "none" and cls.suits(algo.takes)]
    found, use = "sends rows uncompressed", "leave it out"
    if others:
        found, use = "needs a different kind of message", f"use {' or '.join(others)}, or leave it out"
    if others and algo.takes is AcceptedCompression.rows:
        sent = "relays sums of models" if Need.tree in algo.needs else "sends models"
        found = f"{sent} and needs every coordinate in every message"
    raise ConfigError(f"compress={compress.name} cannot be used with algo={algo.name}, which {found}: {use}.")


def _check_decisions(config: Config) -> None:
    """Raise ConfigError if a compressor is to decide something on the way that it cannot know."""
    compress: Compressor = config.compress
    if not (compress.chooses or compress.adapts):
        return
    said = f"compress.adapt={config.compress.adapt.name}" if compress.adapts else f"compress={compress.name}"
    if not has_clock(config) and not config.network.measure:
        raise ConfigError(
            f"{said} needs the costs of links, which are unknown here: choose a cluster, such as "
            "cluster=slow_network, or measure the links between processes with network.measure=true."
        )
    if compress.adapts and config.algo.takes is not AcceptedCompression.means:
        raise ConfigError(
            f"{said} needs a method that averages over all workers, unlike algo={config.algo.name}: use "
            "algo=allreduce, or leave it out."
        )
    if compress.adapts and config.algo.attends_steps > 1:
        raise ConfigError(
            f"{said} tries shares in consecutive steps, but algo={config.algo.name} sends once every "
            f"{config.algo.attends_steps} steps: add algo.period_steps=1, or leave it out."
        )
    if compress.adapts and config.simulate is Simulate.timeline:
        raise ConfigError(f"{said} needs gradients, and simulate=timeline has none: leave it out.")


def check_compressed_rounds(
    algo: Algorithm,
    compress: Compressor,
    communication: Communication,
    rounds: Callable[[], Rounds],
    topology: str,
) -> None:
    """Raise ConfigError if the configured rounds do not support compressed messages between neighbors."""
    if Feature.topology not in algo.supports or Need.tree in algo.needs:
        return  # what is relayed over trees is encoded piece by piece; `check_communication` says the rest
    if communication != Communication():
        raise ConfigError(f"compress={compress.name} needs a round in every step: leave out communication.")
    check(rounds(), {Need.whole}, f"{algo.name} compress={compress.name}", topology)


def check_communication(algo: Algorithm, communication: Communication) -> None:
    """Raise ConfigError if the algorithm cannot do with other rounds than those of the topology."""
    if communication.plain:
        return
    setting = f"communication.{_first_key(communication)}"
    require(algo, Feature.topology, setting)
    if Feature.local_steps in algo.supports and communication == Communication(every=communication.every):
        return
    changes = communication.every > 1 or communication.global_every is not None
    if Need.tree in algo.needs or (changes and Need.static in algo.needs):
        raise refusal(algo, Feature.local_steps, setting)


def _first_key(own: Communication | EarlyStop) -> str:
    """The first key of these settings that is not as usual, with its value."""
    usual = type(own)()
    key = next(f.name for f in dataclasses.fields(own) if getattr(own, f.name) != getattr(usual, f.name))
    return f"{key}={getattr(own, key)}"
