"""Configurations that are refused: in one sentence with the key, the value and what works, before long work starts."""

from __future__ import annotations

import pytest

from decentral.config.composition import compose
from decentral.errors import ConfigError

REFUSED: dict[str, dict[str, str]] = {
    "task=quadratics num_workers=6 topology=ring availability=persistent": {
        "algo=teleportation": "algo=teleportation, which does not support absent workers",
        "algo=relaysgd_grad topology=dbt availability.on_return=stale": "never resends missed updates",
        "algo=dpsgd availability.on_leave=handover": "has no corrections that sum to zero",
        "algo=beer availability.on_leave=restart": "has no corrections that sum to zero",
        "algo=dpsgd network.drop_probability=0.1": "leave one of them out",
        "algo=allreduce compress=topk": "leave compress= out",
        "algo=dpsgd topology=exponential availability.absent=induced": "do not preserve the mean",
        "algo=sgp topology=exponential availability.absent=induced availability.weights=keep": (
            "needs an undirected graph"
        ),
    },
    "task=quadratics algo=adpsgd topology=ring num_workers=6 cluster=free": {
        "availability=flaky availability.absent=induced availability.on_return=stale": (
            "availability=persistent is defined in steps, but algo=adpsgd is asynchronous"
        ),
        "availability=sessions availability.absent=induced": (
            "add availability.absent=induced availability.on_return=stale"
        ),
        "availability=sessions availability.on_return=stale": (
            "add availability.absent=induced availability.on_return=stale"
        ),
        "availability=failures availability.absent=induced availability.on_return=stale": (
            "use availability.crash=false"
        ),
        "availability=sessions availability.absent=induced availability.on_return=stale processes=2": (
            "seconds|does not support absent workers"
        ),
        "availability=sessions availability.absent=induced availability.on_return=stale algo=wagma num_workers=8": (
            "algo=wagma, which does not support absent workers"
        ),
    },
    "task=quadratics algo=dpsgd topology=ring": {
        "schedule=torch.optim.lr_scheduler:ReduceLROnPlateau": "needs a metric in each step",
        "schedule=torch.optim.lr_scheduler:MultiplicativeLR": (
            r"takes objects \(lr_lambda\): make it in a function of your own"
        ),
        "schedule=torch.optim.lr_scheduler:SequentialLR": (
            r"takes objects \(schedulers\): make it in a function of your own"
        ),
        "schedule=torch.optim.lr_scheduler:CyclicLR schedule.base_lr=1 schedule.max_lr=2 schedule.mode=x": (
            "used: ValueError: mode is invalid"
        ),
        "schedule=torch.optim.lr_scheduler:StepLR": "schedule.step_size is missing: give a whole number",
        "schedule=torch.optim.lr_scheduler:CosineAnnealingLR schedule.T_maxx=3": (
            "has no setting 'T_maxx'. Did you mean 'schedule.T_max'"
        ),
        "schedule=torch.optim.lr_scheduler:StepLR schedule.step_size=2 schedule.unit=day": (
            "schedule.unit=day does not exist"
        ),
        "communication.workers_per_machine=3": "communication.workers_per_machine=3 does not divide num_workers=16",
        "topology=dbt communication.workers_per_machine=2": "needs one graph of machines, but topology=dbt is 2",
        "communication.global_every=50000 communication.every=7": "repeat only after 350000 steps",
        "communication.global_every=2 network.drop_probability=0.1": (
            "exchanges within machines and among all workers are reliable"
        ),
        "algo=allreduce communication.every=2": "every=2 cannot be used with .* does not use a topology",
        "algo=relaysgd_grad topology=bt communication.every=2": (
            "every=2 cannot be used with algo=relaysgd_grad, which needs the same graph in every step"
        ),
        "algo=d2 communication.global_every=3": "=3 cannot be used with algo=d2, which needs the same graph",
        "cluster=machines": "needs cluster.compute.mean_s, which is not given",
        "cluster=none cluster.latency=20ms": "cluster=none has no settings",
        "cluster=even cluster.mood=1": "cluster=even has no setting 'mood'",
        "cluster=even cluster.compute.mean=1": "has no setting 'mean'. Did you mean 'cluster.compute.mean_s'",
        "cluster=even cluster.compute=1": "cluster.compute is a group of settings: write cluster.compute.dist",
        "cluster=even cluster.compute.mean_s.x=1": "cluster.compute.mean_s is a single value without a part 'x'",
        "early_stop.patience=0": "use a number >= 1",
        "early_stop.patience=1 early_stop.worker=all": "early_stop.worker=all does not exist",
        "early_stop.metric=loss": "early_stop.metric=loss has no effect without early_stop.patience",
        "early_stop.patience=2 steps=9 simulate=timeline cluster=even": (
            "needs training, and simulate=timeline does not evaluate"
        ),
    },
    "task=quadratics num_workers=6": {
        "algo=streaming_diloco algo.fragments=3": "algo.fragments=3 does not divide algo.period_steps=50",
        "algo=streaming_diloco algo.delay_steps=10": "algo.delay_steps=10 is too large: use a number < 10",
        "algo=teleportation algo.graph=rnig": "algo.graph=rnig does not exist. Did you mean 'ring'",
        "algo=mine:Own": "algo=mine:Own: there is no module mine in this folder",
        "robust=os.path:join": "join is not derived from decentral.network.robust.Robust: derive it",
        "algo=teleportation algo.graph=epidemic": "algo.graph=epidemic has no doubly stochastic matrix",
        "algo=dpsgd topology=epidemic": "doubly stochastic",
        "topology=maps/g.graphml": "is a file: use topology=networkx topology.path=maps/g.graphml",
        "topology=g.edges.gz": "is a file: use topology=networkx topology.path=g.edges.gz",
        "topology=g.csv": "is a file: use topology=file topology.path=g.csv",
        "algo=desloc optim=muon": "desloc averages the state .* does not know that of optim=muon: use optim=adam",
        "algo=desloc optim=torch.optim:RAdam": "does not know that of optim=torch.optim:RAdam",
        "algo=desloc algo.state_periods=[3,6]": r"algo.state_periods=\[3, 6\] .* optim=sgd .*: give at most 1",
        "algo=sparta algo.share=1.5": "algo.share=1.5 is out of range; use a number from 0 to 1",
        "algo=sparta communication.every=2": "every=2 cannot be used with .* does not use a topology",
        "algo=sparta_diloco steps_per_worker=[1,1,1,1,1,1]": "steps_per_worker=.* cannot be used with algo=sparta_d",
        "algo=sparta algo.masks=nowhere.npz": "algo.masks=nowhere.npz is not a file",
        "algo=d2 algo.coins=nowhere.npz": "algo.coins=nowhere.npz needs their probability",
        "algo=d2 algo.probability=0": "algo.probability=0 is out of range",
        "algo=dpsgd optim.gradient_share=0.1": "optim.gradient_share=0.1 needs heavy-ball momentum: set optim.momentum",
        "algo=dpsgd optim=adopt optim.epsilon_hat=true": "optim.epsilon_hat=true needs a bias correction",
        "algo=dpsgd optim=nesterov optim.gradient_share=0.1": "leave out optim.nesterov",
    },
    "task=quadratics": {
        "optim=torch.optim:LBFGS": "optim=torch.optim:LBFGS cannot be used: TypeError: .*closure.*; use another",
        "optim=torch.optim:SparseAdam": "optim=torch.optim:SparseAdam cannot be used: RuntimeError: SparseAdam does",
        "optim=torch.optim:RAdam optim.betas=[0.9,1.5]": "cannot be used: ValueError: Invalid beta parameter",
        "optim=torch.optim:RAdam optim.betaz=[0.9,1.5]": "has no setting 'betaz'. Did you mean 'optim.betas'",
        "partition.column=writer": "partition=dirichlet has no setting 'column': use partition=natural, or leave part",
        "optim=torch.optim:RAdam optim.lr=0.1": "optim=torch.optim:RAdam has no setting 'lr'. Did you mean 'lr'",
        "optim=torch.optim:RAdam optim.eps=small": "optim.eps='small' has the wrong type: use a number",
        "optim=torch.optim:RAdam optim.clip_norm=0": "optim.clip_norm=0 is out of range; use a finite number > 0",
        "optim=torch.optim:RAdam optim.maximize=true": "optim.maximize=true cannot be used: training minimizes",
        "optim=torch.optim:Radam": "has no class or function Radam. Did you mean 'RAdam'",
        "processes=1 network.latency_ms=5": r"network\.latency_ms=5 needs messages between processes",
        "cluster=even network.bandwidth_gbps=1": r"network\.bandwidth_gbps=1 needs messages between processes",
        "algo=adpsgd processes=2 network.latency_ms=5": (
            r"network\.latency_ms=5 cannot be used with algo=adpsgd, which is asynchronous"
        ),
        "algo=allreduce num_workers=8 compress=flexible": (
            "compress=flexible needs the costs of links, .* choose a cluster"
        ),
        "algo=wagma num_workers=8 algo.group_size=3": "algo.group_size=3 .* use one of 1, 2, 4",
        "algo=wagma num_workers=8 algo.group_size=many": "algo.group_size=many .* a power of two, or auto",
        "algo=wagma num_workers=6": "num_workers=6 .* a power of two, for example 4 or 8",
        "algo=adpsgd topology=ring num_workers=5": "algo=adpsgd .* odd length",
        "algo=adpsgd topology=ring num_workers=4 processes=2 trace=true": "trace=true .* leave processes=",
        "algo=dpsgd topology=ring num_workers=4 evaluation.every_simulated_s=1": (
            "evaluation.every_simulated_s=1 .* choose a cluster"
        ),
        (
            "algo=dpsgd topology=ring num_workers=4 cluster=free evaluation.every_epochs=2 "
            "evaluation.every_simulated_s=5"
        ): ("every_epochs=2 and evaluation.every_simulated_s=5 conflict: set one of them to null"),
        "algo=wagma num_workers=8 network.drop_probability=0.1": "network.drop_probability=0.1 cannot be used",
        "algo=wagma num_workers=8 communication.every=2": "communication.every=2 cannot .* which is asynchronous",
        "algo=wagma num_workers=8 cluster=free stop_after_simulated_s=3 processes=2": (
            "choose a cluster, such as cluster=even, and one process"
        ),
        (
            "algo=dpsgd topology=ring num_workers=4 cluster=free cluster.compute.distribution=measured "
            "cluster.compute.mean_s=null cluster.compute.passes=7 processes=2"
        ): ("measured needs training in one process.* recorded its operations"),
    },
    "task=quadratics num_workers=4": {
        "algo=relaysgd topology=dbt compress=topk": (
            "relays sums of models and needs every coordinate in every message: use bf16 or"
        ),
        "algo=sgp compress=bf16": "compress=bf16 cannot be used with algo=sgp, which sends rows uncompressed: leave",
        "algo=choco topology=ring compress=powersgd": (
            "algo=choco, which needs a different kind of message: use bf16 or"
        ),
        "algo=choco topology=dbt compress=topk": "sends whole models, but topology=dbt with num_workers=4 splits them",
        "algo=choco topology=ring compress=topk communication.every=2": (
            r"compress=topk needs a round in every step: leave out communication\."
        ),
        "algo=choco topology=ring compress=topk network.drop_probability=0.1": (
            "cannot be used with algo=choco, which needs every message: use an algorithm that tolerates message loss"
        ),
        "algo=choco topology=ring compress=topk compress.error_feedback=false": (
            r"compress\.error_feedback=false cannot be used with algo=choco, which keeps its own residuals, or none"
        ),
        "algo=demo compress=topk compress.error_feedback=false": (
            "cannot be used with algo=demo, which keeps its own residuals, or none"
        ),
        "algo=sparseloco algo.mean_of=senders compress=randomk": (
            "algo=sparseloco, which needs a different kind of message: use bf16 or dct_topk or"
        ),
        "algo=allreduce compress=dct_topk compress.chunk=300": (
            r"compress\.chunk=300 is out of range; use a number from"
        ),
        "algo=allreduce compress=randomk compress.unbiased=true": r"compress\.unbiased=true sends P / k times the",
        "algo=allreduce compress=topk compress.index_bytes=2": r"compress\.index_bytes=2 is not a valid choice; use",
    },
    "task=quadratics algo=allreduce num_workers=4 steps=30": {
        "compress=topk compress.adapt=knee": r"compress\.adapt=knee needs the costs of links",
        "compress=topk compress.candidates=[0.1,2]": (
            r"compress\.candidates=2 is out of range; use a number > 0 and <= 1"
        ),
        (
            "compress=topk compress.adapt=knee cluster=free cluster.links.latency_s=0.01 "
            "cluster.links.bandwidth_gbps=1e-4 simulate=timeline"
        ): ("simulate=timeline has none"),
        (
            "compress=topk compress.warmup_epochs=5 cluster=free cluster.links.latency_s=0.01 "
            "cluster.links.bandwidth_gbps=1e-4 simulate=timeline"
        ): ("warmup_epochs=5 counts epochs"),
        (
            "compress=topk compress.adapt=knee cluster=free cluster.links.latency_s=0.01 "
            "cluster.links.bandwidth_gbps=1e-4 algo=sparseloco"
        ): (r"algo=sparseloco sends once every 30 steps: add algo\.period_steps=1"),
        "network.measure=true processes=1": "has no links to measure within one process",
        "network.measure=true algo=wagma cluster=free cluster.links.latency_s=0.01 cluster.links.bandwidth_gbps=1e-4": (
            r"network\.measure=true cannot be used with algo=wagma, which is asynchronous"
        ),
    },
    "task=quadratics num_workers=5 communication.every=3": {
        "algo=relaysgd_grad topology=bt": r"^communication\.every=3 cannot be used with algo=.* or use algo=dpsgd ",
        "algo=extra topology=ring": r"^communication\.every=3 cannot be used with algo=.* or use algo=dpsgd ",
        "algo=choco topology=ring": r"^communication\.every=3 cannot be used with algo=.* or use algo=dpsgd ",
        "algo=relaysgd topology=bt communication.global_every=2": (
            r"^communication\.every=3 cannot be used with algo=.* or use algo=dpsgd "
        ),
    },
    "data=digits num_workers=4 algo=dpsgd topology=complete communication.every=3": {
        "lr_per_worker=[0.1,0.2]": r"lr_per_worker=\[0\.1,0\.2\] has 2 entries, but num_workers=4: give one per worker",
        "lr_per_worker=[0.1,0,0.1,0.1]": "is out of range: give finite numbers > 0",
        "lr_per_worker=[0.1,nan,0.1,0.1]": "is out of range: give finite numbers > 0",
        "lr_per_worker=[normal,1,2]": r"lr_per_worker=\[normal,1,2\] is not a distribution: use \[uniform,LOW,HIGH\]",
        "lr_per_worker=[uniform,2,1]": "is not a distribution",
        "lr_per_worker=[a,b,c,d]": "has entries that are not numbers",
        "lr_per_worker=[]": "has 0 entries",
        "algo=allreduce lr_per_worker=[1,1,1,1]": (
            r"lr_per_worker=\[1,1,1,1\] cannot be used with algo=allreduce, whose workers share one update"
        ),
        "lr_per_worker=[true,0.1,0.1,0.1]": "is out of range: give finite numbers > 0",
        "batch_size_per_worker=[1,2,3,1e30]": "is out of range: give whole numbers > 0",
        "batch_size_per_worker=[lognormal,4,500]": "which exceeds the 359 training images",
        "batch_size_per_worker=[1,2,3,0]": "is out of range: give whole numbers > 0",
        "batch_size_per_worker=[1,2,3,1.5]": "is out of range: give whole numbers > 0",
        "batch_size_per_worker=[1,2,3,400]": (
            r"batch_size_per_worker=\[1,2,3,400\] has 400, which exceeds the 359 training images"
        ),
        "task=quadratics batch_size_per_worker=[1,2,3,4]": "cannot be used with task=quadratics, which has no batches",
        "steps_per_worker=[1,2,3,4]": r"gives a worker 4 steps, more than communication\.every=3: use",
        "algo=d2 communication.every=1 steps_per_worker=[1,2,3,3]": "cannot be used with algo=d2",
    },
    (
        "algo=dpsgd topology=ring task=quadratics task.dimension=5 steps=20 num_workers=8 cluster=free "
        "cluster.links.latency_s=null cluster.links.bandwidth_gbps=null cluster.network.mode=steps "
        "cluster.network.segment_epochs=5 cluster.network.latency_s=[0.25,0.5] "
        "cluster.network.bandwidth_gbps=[inf,inf]"
    ): {
        "cluster.network.latency_s=[0.1]": r"1 numbers and cluster\.network\.bandwidth_gbps 2: give both",
        "cluster.network.latency_s=[0.1,-1]": r"cluster\.network\.latency_s=\-1 is negative; use a number from 0 to",
        "cluster.network.latency_s=[] cluster.network.bandwidth_gbps=[]": "give at least one segment",
        "cluster.links.latency_s=1": r"cluster\.links\.latency_s=1 has no effect with cluster\.network\.mode=steps",
        "algo=wagma": "mode=steps cannot be used with algo=wagma, which is asynchronous",
    },
    "task=regression algo=dpsgd topology=ring num_workers=4": {
        "task.samples_per_worker=0": r"task\.samples_per_worker=0",
        "task.l2=-1": r"task\.l2=-1",
        "task.loss=logistic task.l2=0": r"task\.l2=0 cannot be used with task\.loss=logistic",
        "task.l2=0 task.dimension=9 task.samples_per_worker=2": r"4 workers with task\.samples_per_worker=2",
    },
}
"""Settings of all -> further settings -> what the refusal says."""


@pytest.mark.parametrize("base", REFUSED)
def test_a_configuration_that_cannot_work_is_refused_in_a_sentence(base: str) -> None:
    for words, says in REFUSED[base].items():
        with pytest.raises(ConfigError, match=says) as refused:
            compose([*base.split(), *words.split()])
        assert str(refused.value)[-1] in ".?)" and "\n" not in str(refused.value), words
