"""Workers with learning rates, batch sizes and numbers of local steps of their own, against loops in plain PyTorch."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from configure import configure
from decentral.algorithms.features import Feature
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.config.per_worker import per_worker
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.tasks.problems.batches import BatchOrder
from decentral.training.assemble import assemble
from decentral.training.timing import timed
from reference_runs import iterates
from table import OPTIMIZERS, in_rounds, run_of
from test_resume import same_results

N, SIZES, RATES, STEPS = 4, [8, 16, 16, 5], [0.1, 0.2, 0.05, 0.1], [1, 3, 2, 3]
OWN = ["lr_per_worker=[0.1,0.2,0.05,0.1]", "batch_size_per_worker=[8,16,16,5]", "steps_per_worker=[1,3,2,3]"]
RUN = [
    *("data=digits", "model=mlp", f"num_workers={N}", "algo=dpsgd", "topology=complete", "communication.every=3"),
    *("precision=fp64", "steps=6", "trace=true", "save=none", "evaluation.every_epochs=0.1"),
]
OPTIMS = {
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "torch.optim:RAdam": lambda p, lr: torch.optim.RAdam(p, lr=lr),
}


def by_hand(config, optim):
    """The models [steps + 1, n, P] of n loops that average every 3 steps."""
    run = assemble(prepare(config), World(0, 1, torch.device("cpu")))
    problem, x0 = run.problem, run.stepper.models[0].clone()
    settings = {"reshuffle": True, "drop_last": True}
    orders = [BatchOrder(problem.indices, range(N), size, config.seed, **settings) for size in SIZES]
    models, optims, drawn, found = [], [], [0] * N, [x0.repeat(N, 1).clone()]
    for i in range(N):
        worker = deepcopy(problem.models.modules[0])
        worker.load_state_dict(problem.model_tensors(x0, {}))
        models.append(worker.double())
        optims.append(optim(worker.parameters(), RATES[i]))
    for t in range(config.steps):
        for i in range(N):
            if t % 3 >= STEPS[i]:
                continue
            images, labels = problem.data.drawn(orders[i].row(i, drawn[i])[None], [i], [drawn[i]])
            drawn[i] += 1
            optims[i].zero_grad()
            F.cross_entropy(models[i](images[0].double()), labels[0]).backward()
            optims[i].step()
        if t % 3 == 2:
            with torch.no_grad():
                for parameters in zip(*(each.parameters() for each in models), strict=True):
                    mean = torch.stack(parameters).mean(0)
                    for parameter in parameters:
                        parameter.copy_(mean)
        found.append(torch.stack([torch.cat([p.detach().flatten() for p in each.parameters()]) for each in models]))
    return torch.stack(found).numpy(), drawn


@pytest.mark.parametrize("optim", OPTIMS)
def test_workers_with_their_own_rates_sizes_and_steps_are_loops_of_plain_torch(start, optim):
    wanted, drawn = by_hand(configure(*RUN, *OWN, f"optim={optim}"), OPTIMS[optim])
    loop, batched = (
        start(*RUN, *OWN, f"optim={optim}", f"execution={way}", directory=way) for way in ("loop", "batched")
    )
    for found in (loop, batched):
        assert np.abs(found.iterates - wanted).max() < 1e-9
        assert found.facts["examples_per_worker"] == [d * size for d, size in zip(drawn, SIZES, strict=True)]
    m = 1438 // N  # an epoch is a pass of the workers on average
    assert loop.facts["epoch"] == pytest.approx(
        np.mean([d / (m // size) for d, size in zip(drawn, SIZES, strict=True)])
    )


def test_processes_and_a_run_that_breaks_off_make_no_difference(start):
    settings = [*RUN, *OWN, "optim=adam", "checkpoint_every_s=0"]
    whole = start(*settings, directory="whole")
    assert start(*settings, directory="broken", interrupt_at=4).status == "interrupted"
    same_results(whole, start(*settings, directory="broken"))
    two = start(*settings, processes=2, directory="two")
    assert np.abs(two.iterates - whole.iterates).max() < 1e-12
    assert two.facts["examples_per_worker"] == whole.facts["examples_per_worker"]
    same_results(two, start(*settings, processes=2, directory="two"))


@pytest.mark.parametrize("algo", ["local_sgd", "diloco", "sgp", "relaysgd"])
def test_methods_with_local_steps_may_give_each_worker_another_number(start, algo):
    period = "communication.every=2" if algo in ("sgp", "relaysgd") else "algo.period_steps=2"
    topology = "chain" if algo == "relaysgd" else "ring"
    shape = [
        f"algo={algo}",
        f"topology={topology}",
        "task=quadratics",
        "num_workers=4",
        "steps=8",
        "trace=true",
        period,
    ]
    usual, all_of_them = start(*shape, directory="usual"), start(*shape, "steps_per_worker=[2,2,2,2]", directory="all")
    assert np.abs(usual.iterates - all_of_them.iterates).max() < 1e-12
    x = start(*shape, "steps_per_worker=[1,2,1,2]", "lr_per_worker=[choice,0.1,0.2]", directory="own").iterates
    assert (x[2::2] != x[1:-1:2]).all(axis=2).any() and np.isfinite(x).all()


OWN_RATES = [name for name, cls in in_rounds().items() if Feature.own_rates in cls.supports]


@pytest.mark.parametrize("algo", OWN_RATES)
def test_equal_rates_of_workers_are_the_rate_of_all(recorded, algo):
    words = [word for word in run_of(algo) if word != "lr=0.05"]
    one = recorded(*run_of(algo)).iterates
    n = one.shape[1]
    alone = World(0, 1, torch.device("cpu"))
    own = iterates(alone, configure(*words, f"lr_per_worker=[{','.join(['0.05'] * n)}]"))
    assert np.abs(one - own).max() < 1e-10 * max(1.0, np.abs(one).max())
    rates = ",".join(map(str, np.linspace(0.02, 0.05, n)))
    other = iterates(alone, configure(*words, f"lr_per_worker=[{rates}]", "steps=1"))
    assert (other[1] != one[1]).any(axis=1)[:-1].all()


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_equal_rates_and_all_steps_change_nothing_with_any_optimizer(start, optim):
    shape = [*(RUN if optim == "muon" else ["task=quadratics", *RUN[2:6], *RUN[7:]]), *OPTIMIZERS[optim]]
    one = start(*shape, "lr=0.05", directory="one").iterates
    own = start(*shape, "lr_per_worker=[0.05,0.05,0.05,0.05]", "steps_per_worker=[3,3,3,3]", directory="own").iterates
    assert np.abs(one - own).max() < 1e-10


def test_simulated_time_follows_each_workers_steps(start):
    shape = ["cluster=even", "cluster.compute.mean_s=0.1", "batch_size=8"]
    alone = start(*RUN, *OWN, *shape, "simulate=training").facts
    compute = alone["simulated_shares"]["compute"]
    drawn = [6 // 3 * steps for steps in STEPS]
    seconds = [0.1 * d * size / 8 for d, size in zip(drawn, SIZES, strict=True)]
    assert compute == pytest.approx([np.mean(seconds), min(seconds), max(seconds)])


def test_accumulated_gradients_count_like_batches_that_are_as_large(start):
    """Epochs, time, bytes and examples, with stragglers, batches and local steps of each worker, asynchronously."""
    shape = ["data=synthetic", "data.num_train=96", "data.image_size=4", "model=mlp", "num_workers=4", "steps=6"]
    shape += ["topology=ring", "cluster=even", "cluster.num_parameters=9", "save=none", "batch_size=2"]
    slow = ["cluster.stragglers.mode=fixed", "cluster.stragglers.workers=[1]", "cluster.stragglers.delay_s=0.5"]
    drawn = ["cluster.compute.distribution=lognormal", "cluster.compute.mean_s=0.1", "cluster.compute.sigma=0.5"]
    cases = [
        (["algo=dpsgd", *drawn], [2, 4, 2, 1]),
        (["algo=dpsgd", *slow, "communication.every=2", "steps_per_worker=[1,2,2,1]"], [2, 2, 2, 2]),
        (["algo=adpsgd", *drawn], [2, 2, 4, 2]),
    ]
    for number, (words, sizes) in enumerate(cases):
        given = [f"batch_size_per_worker={[m * size for size in sizes]}".replace(" ", "") for m in (1, 3)]
        runs = [
            start(*shape, *words, *more, directory=f"{number}-{way}")
            for way, more in (("accumulated", [given[0], "accumulate=3"]), ("large", [given[1]]))
        ]
        clocks = [[(row["epoch"], row["simulated_s"], row["bytes_sent"]) for row in run.rows] for run in runs]
        np.testing.assert_allclose(*clocks, rtol=1e-12)
        assert runs[0].facts["examples_per_worker"] == runs[1].facts["examples_per_worker"]
        timeline = timed(prepare(configure(*shape, *words, given[0], "accumulate=3")), 6, 1)
        assert timeline.simulated_s == pytest.approx(runs[0].facts["simulated_s"])


def test_a_distribution_is_drawn_from_the_seed_for_each_worker_by_itself():
    drawn = {}
    for given in (["uniform", 0.1, 0.2], ["lognormal", 0.1, 0.5], ["choice", 0.1, 0.2, 0.4]):
        few, many = (per_worker("lr_per_worker", given, n, 3, whole=False) for n in (4, 400))
        assert (few == many[:4]).all() and len(set(many.tolist())) > 2 and (many > 0).all()
        drawn[given[0]] = many
    assert 0.1 <= drawn["uniform"].min() < drawn["uniform"].max() < 0.2
    assert np.median(drawn["lognormal"]) == pytest.approx(0.1, rel=0.1)
    whole = per_worker("batch_size_per_worker", ["lognormal", 4, 2], 100, 3, whole=True)
    assert whole.dtype == np.int64 and whole.min() == 1
    ids = {run_id(configure(*RUN, *own)) for own in ([], [OWN[0]], [OWN[1]], [OWN[2]], OWN, ["accumulate=2"])}
    assert len(ids) == 6
    assert run_id(configure(*RUN, OWN[0])) == run_id(configure(*RUN, OWN[0], "lr=0.3"))  # which is not used
    with pytest.raises(ConfigError, match=r"lr=0.3 conflicts with lr_per_worker=\[0.1,0.2,0.05,0.1\]"):
        compose([*RUN, OWN[0], "lr=0.3"])


def test_the_last_batches_of_a_pass_are_counted_as_they_are(start):
    """Of 240 // 4 texts: in passes of 16 and 32 batches, and so on."""
    text = ["task=text", "data=synthetic_text", "data.num_train=240", "model=fasttext"]
    shape = [*RUN[:5], *text, OWN[1], "task.drop_last=false", "steps=14", "save=none"]
    found = {way: start(*shape, f"execution={way}", directory=way) for way in ("loop", "batched")}
    m = configure(*shape).data.inspect().num_train // N
    drawn = [sum(min(size, m - size * (t % -(-m // size))) for t in range(14)) for size in SIZES]
    assert found["loop"].facts["examples_per_worker"] == found["batched"].facts["examples_per_worker"] == drawn
    last = [each.last("loss", "averaged") for each in found.values()]
    assert last[0] == pytest.approx(last[1], rel=1e-4)


def test_asynchronous_workers_have_batches_and_times_of_their_own(start):
    shape = ["data=digits", "model=mlp", "num_workers=4", "algo=adpsgd", "topology=ring", "steps=20", "batch_size=8"]
    facts = start(*shape, OWN[1], "cluster=even", "cluster.compute.mean_s=0.1", "save=none").facts
    drawn = [each / size for each, size in zip(facts["examples_per_worker"], SIZES, strict=True)]
    assert sum(drawn) == 4 * 20 and drawn[0] > 1.8 * drawn[1] and drawn[3] > 1.4 * drawn[0]
