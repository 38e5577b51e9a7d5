"""Settings of training that everyone expects, against plain PyTorch: alone, and n workers on the complete graph."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from configure import configure
from conftest import exit_status
from decentral.cli.run import main
from decentral.config.identity import run_id
from decentral.config.parsing import read
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.registry import plugins
from decentral.registry.find import NAMED
from decentral.registry.signature import function
from decentral.store.metrics import read_metrics
from decentral.training.assemble import assemble

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = 6
SMALL = (
    *("algo=dpsgd", "topology=complete", "data=digits", "model=mlp", "model.hidden=[8]"),
    *("batch_size=4", "alpha=1", "precision=fp64", "lr=0.1", f"steps={STEPS}", "processes=1", "device=cpu"),
)
TEXT = (
    *(
        "algo=dpsgd",
        "topology=complete",
        "task=text",
        "data=synthetic_text",
        "model=fasttext",
        "data.num_train=160",
        "data.num_test=20",
        "data.words=50",
    ),
    *("batch_size=4", "alpha=1", "precision=fp64", "optim=sgd", "lr=0.1", f"steps={STEPS}"),
    *("processes=1", "device=cpu"),
)
HERE = World(0, 1, torch.device("cpu"))


def ours(*overrides: str) -> tuple[Tensor, Any]:
    """The models [n, P] after all steps, and the run."""
    run = assemble(prepare(configure(*overrides)), HERE)
    with torch.no_grad():
        for _ in range(run.total_steps):
            run.stepper.step()
    return run.stepper.models.clone(), run


def theirs(loss: Callable[[Tensor, Tensor], Tensor], schedule: Callable[[Any], Any] | None, *overrides: str) -> Tensor:
    """The parameters [P] that plain SGD on the batches of all workers together has after all steps."""
    config = configure(*overrides)
    run = assemble(prepare(config), HERE)
    model = config.model.build(config.data.inspect()).double()
    nn.utils.vector_to_parameters(run.stepper.models[0], model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    rates = schedule(optimizer) if schedule else None
    for t in range(STEPS):
        inputs, targets = run.problem.batch_of(None, t)
        if inputs.is_floating_point():
            inputs = inputs.double()
        optimizer.zero_grad()
        torch.stack([loss(model(one), their) for one, their in zip(inputs, targets, strict=True)]).mean().backward()
        optimizer.step()
        if rates is not None:
            rates.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def rooted(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number for each example."""
    return (cross_entropy(outputs, targets, reduction="none") + 1) ** 0.5


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that depends on which examples are in a batch together."""
    return cross_entropy(outputs, targets, weight=torch.arange(1.0, outputs.shape[1] + 1).to(outputs))


def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
    return rooted(outputs, targets) * torch.rand(()) * np.random.rand()


def of_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(outputs, one_hot(targets, outputs.shape[1]).to(outputs))


Case = tuple[tuple[str, ...], Callable[[Tensor, Tensor], Tensor], Callable[[Any], Any] | None, tuple[str, ...]]
CASES: dict[str, Case] = {
    "cosine": (("schedule=cosine",), cross_entropy, lambda o: CosineAnnealingLR(o, STEPS), SMALL),
    "linear": (
        ("schedule=linear", "schedule.final_factor=0.2"),
        cross_entropy,
        lambda o: LinearLR(o, 1.0, 0.2, STEPS),
        SMALL,
    ),
    "label smoothing": (("task.label_smoothing=0.2",), partial(cross_entropy, label_smoothing=0.2), None, SMALL),
    "label smoothing of texts": (
        ("task.label_smoothing=0.2",),
        partial(cross_entropy, label_smoothing=0.2),
        None,
        TEXT,
    ),
    "mse": (("task.loss=mse",), of_squares, None, SMALL),
    "mse of texts": (("task.loss=mse",), of_squares, None, TEXT),
    "numbers of examples": ((f"task.loss={__name__}:rooted",), lambda *one: rooted(*one).mean(), None, SMALL),
    "a log beside them": ((f"task.loss={__name__}:logged",), lambda *one: rooted(*one).mean(), None, SMALL),
    "a class": (("task.loss=torch.nn:MultiMarginLoss",), nn.MultiMarginLoss(), None, SMALL),
    "a mean": ((f"task.loss={__name__}:weighted",), weighted, None, SMALL),
    "the hardest": ((f"task.loss={__name__}:hardest",), lambda *one: hardest(*one), None, SMALL),
    "a mean of texts": ((f"task.loss={__name__}:weighted",), weighted, None, TEXT),
}


@pytest.mark.parametrize(("place", "name"), list(enumerate(CASES)))
def test_it_is_plain_torch(place: int, name: str) -> None:
    """With one worker in one of the two executions, and with three in the other one."""
    settings, loss, schedule, base = CASES[name]
    for n, execution in ((1 + 2 * (place % 2), "loop"), (3 - 2 * (place % 2), "batched")):
        config = (*base, *settings, f"num_workers={n}", f"execution={execution}")
        found, run = ours(*config)
        assert run.problem.passes.execution == execution
        expected = theirs(loss, schedule, *config)
        torch.testing.assert_close(found, expected.expand(n, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "settings", [["task.label_smoothing=0.2"], ["task.loss=mse"], [f"task.loss={__name__}:rooted"]]
)
def test_a_test_loss_is_the_mean_over_test_examples_without_smoothing(settings: list[str]) -> None:
    _, run = ours(*SMALL, *settings, "num_workers=1")
    model = run.problem.models.for_tests(0).eval()
    ((inputs, targets),) = run.problem.data.test_batches(10_000)
    outputs = model(inputs.double())
    loss = {"mse": of_squares, f"{__name__}:rooted": rooted}.get(settings[0].partition("=")[2], cross_entropy)
    found = run.problem.finish(run.problem.worker_statistics(run.stepper.models))[0, 1]
    torch.testing.assert_close(found, loss(outputs, targets).mean().detach())


def test_what_a_loss_of_ones_own_draws_is_addressed_by_worker_and_step() -> None:
    found = [
        ours(*SMALL, f"task.loss={__name__}:noisy", "num_workers=3", f"execution={e}")[0] for e in ("loop", "auto")
    ]
    np.random.seed(7)
    torch.manual_seed(7)
    found.append(ours(*SMALL, f"task.loss={__name__}:noisy", "num_workers=3", "execution=loop")[0])
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=0)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def overwriting(outputs: Tensor, targets: Tensor) -> Tensor:
    """`rooted` of the first four classes; targets are changed in place."""
    return rooted(outputs, targets.clamp_(max=3))


def of_four(outputs: Tensor, targets: Tensor) -> Tensor:
    return rooted(outputs, targets.clamp(max=3))


@pytest.mark.parametrize("execution", ["loop", "batched"])
def test_a_loss_of_ones_own_may_write_into_the_targets_that_it_gets(execution: str) -> None:
    found = []
    for name in ("of_four", "overwriting"):
        models, run = ours(*SMALL, f"task.loss={__name__}:{name}", "num_workers=2", f"execution={execution}")
        found.append((models, run.problem.finish(run.problem.worker_statistics(run.stepper.models))))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def of_columns(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean(0)


def detached(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.detach(), targets)


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="sum")


def number(outputs: Tensor, targets: Tensor) -> float:
    return cross_entropy(outputs, targets).item()


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.nothing


class Tempered(nn.Module):
    """A temperature that is to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.log_t = nn.Parameter(torch.tensor(1.0))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs * self.log_t.exp(), targets)


LOG: list[float] = []


def logged(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that changes something, which has no part in it."""
    LOG.append(outputs.sum().item())
    return rooted(outputs, targets)


def hardest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of the hardest examples."""
    return cross_entropy(outputs, targets, reduction="none").topk(4).values.mean()


REFUSED = {
    "task.loss=hinge": "task.loss=hinge does not exist: use cross_entropy, mse, or module:function",
    "task.loss=mse task.label_smoothing=0.1": "task.label_smoothing=0.1 needs task.loss=cross_entropy",
    "task.label_smoothing=1": ">= 0 and < 1",
    "task.loss=nowhere:loss": "there is no module nowhere",
    f"task.loss={__name__}:nothing": "has no class or function nothing",
    f"task.loss={__name__}:of_columns": r"returns \[10\] for 66 examples: return a tensor with one number per",
    f"task.loss={__name__}:detached": "without a gradient",
    f"task.loss={__name__}:number": "returns a float for 66 examples",
    f"task.loss={__name__}:summed": "returns the sum over the examples: return their mean, or one number per",
    f"task.loss={__name__}:broken": "AttributeError",
    f"task.loss={__name__}:Tempered": "has the parameter log_t, which would not be trained: put it into the model",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_cannot_be_right_is_refused_before_the_first_step(settings: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[settings]):
        assemble(prepare(configure(*SMALL, *settings.split(), "num_workers=2")), HERE)


MODULE = """
import numpy as np
import torch
from torch.nn.functional import cross_entropy

def loss(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none") * (1 + torch.rand(len(targets)) * np.random.rand())

def shifted(image):
    return image.roll(int(torch.randint(3, ())) - np.random.randint(2), 2)

def largest(outputs, targets):
    return outputs.max()
"""
OWN = ("task.loss={}:loss", "data.augment={}:shifted", "metrics=[f1,-{}:largest]")
"""What a module of one's own, in the current folder, can be asked for."""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Settings that name its functions."""
    name = f"mine_{abs(hash(str(tmp_path))) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECENTRAL_OWN", "")
    path = list(sys.path)
    yield [one.format(name) for one in OWN]
    sys.path[:] = path
    sys.modules.pop(name, None)
    function.cache_clear()


def test_functions_of_ones_own_are_the_same_after_an_interruption(own: list[str], start: Any) -> None:
    often = [*SMALL, *own, "num_workers=3", "schedule=cosine", "evaluation.every_epochs=0.05", "checkpoint_every_s=0"]
    straight = start(*often, directory="straight")
    assert start(*often, crash_at=4).status == "crashed"
    assert start(*often).rows == straight.rows


def test_functions_of_ones_own_are_the_same_in_several_processes_and_count_by_their_source(own: list[str]) -> None:
    small = [*(one for one in SMALL if not one.startswith("processes=")), *own, "num_workers=2", "progress=false"]
    metrics = []
    for number, processes in enumerate((1, 2)):
        assert exit_status(main, *small, f"processes={processes}", f"run_dir=run{number}") == 0
        metrics.append(
            {
                tuple(row[key] for key in ("step", "worker", "split", "metric")): row["value"]
                for row in read_metrics(Path(f"run{number}"))
            }
        )
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-9)
    with pytest.raises(ConfigError, match="is code named by a stored file"):
        NAMED.clear()
        read(Path("run0/config.yaml"))
    before = run_id(configure(*SMALL, *own))
    for key in [key for key in sys.modules if key.startswith("mine_")]:
        Path(f"{key}.py").write_text(MODULE + "# changed")
        del sys.modules[key]
    function.cache_clear()
    plugins.use(None)
    os.environ["DECENTRAL_OWN"] = ""
    assert run_id(configure(*SMALL, *own)) != before


def test_a_warm_up_that_is_longer_than_the_run_is_said(start):
    words = ["model=mlp", "num_workers=2", "batch_size=8", "steps=3", "schedule.warmup_epochs=50", "processes=1"]
    (note,) = [one for one in start(*words).facts["notes"] if "warm-up" in one]
    assert note == "the warm-up of 50 epochs (schedule.warmup_epochs) is longer than the run"


def test_an_epoch_of_a_step_or_two_is_said(start):
    words = ["model=mlp", "model.hidden=[2]", "num_workers=16", "batch_size=80", "processes=1"]
    words += ["evaluation.every_epochs=100"]
    (note,) = [one for one in start(*words, "epochs=2").facts["notes"] if "an epoch has" in one]
    assert note.startswith("an epoch has 1 step, because a step takes batch_size=80 examples of each worker: train")
    for enough in ("steps=2", "epochs=200"):
        assert not start(*words, enough, directory=enough).facts.get("notes")


def test_a_prepared_run_can_be_sent_to_another_process():
    run = prepare(configure(*SMALL, "num_workers=4", "topology=ring"))
    sent = pickle.loads(pickle.dumps(run))
    assert sent.id == run.id and (sent.rounds.matrices(0)[0] == run.rounds.matrices(0)[0]).all()


# -- what a plain run computes and imports -----------------------------------------------------------------------------

UNUSED = (
    *("decentral.network.processes", "decentral.network.asynchronous", "decentral.network.transports"),
    *("decentral.network.windows", "decentral.training.asynchronous"),
    *("decentral.training.attendance", "decentral.training.clock", "decentral.training.probe"),
)
PLAIN_RUN = """
import sys
from unittest import mock
import decentral.config.identity as source
import decentral.config.prepared as prepared
from decentral.cli.run import main
with mock.patch.object(source, "identity", wraps=source.identity) as one:
    with mock.patch.object(prepared, "identity", one), mock.patch("decentral.cli.single.draw"):
        try:
            main(sys.argv[1:])
        except SystemExit as end:
            print(end.code, one.call_count, *(name for name in sys.modules if name.startswith("decentral.")))
"""


def test_a_plain_run_computes_its_identity_once_and_imports_only_what_it_uses(tmp_path):
    words = ["task=quadratics", "algo=relaysgd", "topology=dbt", "steps=2", "processes=1", f"run_dir={tmp_path}/run"]
    done = subprocess.run([sys.executable, "-c", PLAIN_RUN, *words], capture_output=True, text=True, check=False)
    code, calls, *modules = done.stdout.splitlines()[-1].split()
    assert (code, calls) == ("0", "1"), done.stderr
    assert [name for name in modules if name.startswith(UNUSED)] == []
