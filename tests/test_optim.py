"""Local optimizers, schedules, batches; methods with momentum, those that track the mean update, outer ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from importlib import import_module

import numpy as np
import pytest
import torch

import reference
from configure import configure
from decentral.algorithms.sparta import SPARTA, Select
from decentral.algorithms.teleportation import Teleportation
from decentral.compression.rows import RowLayout
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.lr_schedules.schedule import (
    Constant,
    Cosine,
    Exponential,
    Inverse,
    InverseSqrt,
    LearningRateSchedule,
    Linear,
    MultiStep,
)
from decentral.network.local import LocalNetwork
from decentral.network.world import World
from decentral.optim.adam import AdamW
from decentral.optim.muon import _COEFFICIENTS, Compute, Muon, Polynomial, Scale
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.registry import components, is_foreign, signature
from decentral.tasks.problems.batches import BatchOrder
from decentral.topology.delivery import Losses
from decentral.training.assemble import assemble
from decentral.training.timing import timed
from table import OPTIMIZERS, a_third

# -- Local optimizers follow their formulas, on rows; schedules too; batches are a function of worker and step ---------

K, P, STEPS = 3, 7, 12


def rate(t: int) -> float:
    return 0.1 / (1 + t)


FORMULAS = [
    *(" ".join(words) for name, words in OPTIMIZERS.items() if ":" not in name),
    "optim=sgd",
    "optim=momentum optim.weight_decay=0.1 optim.clip_norm=2",
    "optim=momentum optim.gradient_share=0.3",
    "optim=momentum optim.gradient_share=1",
    "optim=adam optim.beta1=0.5 optim.beta2=0.7 optim.epsilon=1e-3",
    "optim=adamw optim.beta2=0.95 optim.gradient_share=0.3",
    "optim=adamw optim.gradient_share=1",
    "optim=adopt optim.beta2=0.95 optim.weight_decay=0.1 optim.gradient_share=0.3",
    "optim=adopt optim.beta2=0.95 optim.gradient_share=1",
]


@pytest.mark.parametrize("words", FORMULAS)
def test_an_optimizer_follows_its_formula(words: str) -> None:
    optimizer = compose(["task=quadratics", *words.split()]).optim
    name = type(optimizer).__name__
    assert hasattr(reference, name), f"add the formula to tests/reference.py, as a class {name}"
    formula = getattr(reference, name)
    known = {field.name: getattr(optimizer, field.name) for field in fields(formula) if hasattr(optimizer, field.name)}
    local, formula = optimizer.rule(rate, RowLayout.flat(P)), formula(**known)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(K, P)))
    expected, buffers = x.numpy().copy(), local.init(x)
    for t in range(STEPS):
        g = np.random.default_rng(t).normal(size=(K, P))
        u, buffers = local(torch.from_numpy(g.copy()), x, buffers, t)
        x = x + u
        if optimizer.clip_norm is not None:
            g = g * np.minimum(1, optimizer.clip_norm / (np.linalg.norm(g, axis=1, keepdims=True) + 1e-6))
        expected = expected + formula.update(g, rate(t), expected)
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12)


SHAPES = RowLayout(("weight", "kernel", "bias"), ((3, 2), (2, 1, 2, 2), (3,)))
DOTTED = {
    "Adadelta": ["weight_decay=0.1"],
    "Adafactor": ["weight_decay=0.1"],  # a state of other shapes than the parameters
    "Adagrad": ["initial_accumulator_value=0.3"],  # a state from the beginning
    "Adam": ["betas=[0.5,0.7]", "amsgrad=true", "weight_decay=0.1"],
    "AdamW": ["clip_norm=1"],
    "Adamax": [],
    "ASGD": ["lambd=0.01"],
    "Muon": ["weight_decay=0.2"],
    "NAdam": ["decoupled_weight_decay=true", "weight_decay=0.1"],
    "RAdam": ["weight_decay=0.1", "foreach=true"],
    "RMSprop": ["centered=true", "momentum=0.5"],
    "Rprop": ["etas=[0.4,1.3]"],
    "SGD": ["momentum=0.9", "dampening=0.5"],  # its first step is another one
}


@pytest.mark.parametrize("name", DOTTED)
def test_an_optimizer_of_torch_is_one_per_worker(name):
    """Also with rows of some workers only, in threads, and from other memory."""
    layout = RowLayout(("weight", "other"), ((3, 2), (2, 4))) if name == "Muon" else SHAPES
    words = [f"optim.{word}" for word in DOTTED[name]]
    rule = compose([f"optim=torch.optim:{name}", *words, "task=quadratics"]).optim
    local, P = rule.rule(rate, layout), layout.num_coordinates
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(K, P)))
    parts = list(zip(layout.slices, layout.shapes, strict=True))
    theirs = [[torch.nn.Parameter(row[each].view(shape)) for each, shape in parts] for row in x.clone()]
    settings = {key: value for key, value in rule.settings().items() if key != "clip_norm"}
    optimizers = [getattr(torch.optim, name)(parameters, lr=rate(0), **settings) for parameters in theirs]
    buffers = local.init(x)
    for t in range(STEPS):
        g = torch.from_numpy(np.random.default_rng(t).normal(size=(K, P)))
        here = [0, 2] if t < 5 else [0, 1, 2]
        for i in here:
            for parameter, (each, shape) in zip(theirs[i], parts, strict=True):
                parameter.grad = g[i][each].view(shape).clone()
            if rule.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(theirs[i], rule.clip_norm)
            optimizers[i].param_groups[0]["lr"] = rate(t)
            optimizers[i].step()
        held = tuple(buffer[here] for buffer in buffers)
        with ThreadPoolExecutor(1) as thread:
            x[here] = thread.submit(torch.no_grad()(local.adapt), x[here], g[here], held, t).result()[0]
        for buffer, rows in zip(buffers, held, strict=True):
            buffer[here] = rows
        expected = torch.stack([torch.cat([one.flatten() for one in parameters]) for parameters in theirs])
        torch.testing.assert_close(x, expected.detach(), rtol=0, atol=1e-12)


COUNTS = '''"""Optimizers of one's own."""

import torch


class Lion(torch.optim.Optimizer):
    """Lion, with a count that is a number of Python, and one for all parameters."""

    def __init__(self, theta, lr: float = 0.1, beta: float = 0.9):
        super().__init__(theta, {"lr": lr, "beta": beta, "k": 0})

    def step(self):
        group = self.param_groups[0]
        group["k"] += 1
        for p in group["params"]:
            state = self.state[p]
            m, state["steps"] = state.setdefault("m", torch.zeros_like(p)), state.get("steps", 0) + 1
            u = torch.sign(m.lerp(p.grad, 1 - group["beta"])) / state["steps"] / group["k"]
            state["m"] = m.lerp(p.grad, 0.01)
            p.sub_(u, alpha=group["lr"])


class Hidden(Lion):
    def step(self):
        self.extra = getattr(self, "extra", 0) + 1
        self.param_groups[0]["lr"] /= self.extra
        super().step()


class Listed(Lion):
    def step(self):
        self.state[self.param_groups[0]["params"][0]].setdefault("losses", [])
        super().step()


class Every(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "phase": 0})
        self.count = 0

    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                state["step"] = state.get("step", 0) + 1
                one.data -= group["lr"] * one.grad
                self.after(group, one, state)


class Late(Every):
    def after(self, group, one, state):
        if state["step"] == 6:
            state["slow"] = one.data.clone()


class Counts(Every):
    def after(self, group, one, state):
        self.count += 1


class Switches(Every):
    def after(self, group, one, state):
        if state["step"] == 10:
            group["phase"] = 1


class Replaces(Every):
    def after(self, group, one, state):
        one.data = one.data - group["lr"] * one.grad


class Positive(Every):
    def __init__(self, params, lr=0.1):
        if lr <= 0:
            raise ValueError("lr must be above 0")
        super().__init__(params, lr)

    def after(self, group, one, state):
        pass


class TensorRate(torch.optim.SGD):
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=torch.tensor(lr, dtype=torch.float64))

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data.sub_(parameter.grad * self.param_groups[0]["lr"].item())


class TensorInGroup(TensorRate):
    replaces = False

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)
        self.param_groups[0]["taken"] = torch.tensor(0.0)

    def step(self):
        group = self.param_groups[0]
        if self.replaces:
            group["taken"] = group["taken"] + 1
        else:
            group["taken"] += 1
        super().step()


class ReplacedTensorInGroup(TensorInGroup):
    replaces = True


def two_groups(params, lr=0.1):
    return torch.optim.SGD([{"params": params}, {"params": [torch.nn.Parameter(torch.zeros(1))]}], lr)


def noisy(params, lr=0.1):
    params[0].data += torch.randn_like(params[0])
    return torch.optim.SGD(params, lr)
'''


def test_a_user_optimizer_may_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opts_counted.py").write_text(COUNTS)
    local = compose(["optim=opts_counted:Lion", "optim.beta=0.5", "task=quadratics"]).optim.rule(rate, SHAPES)
    x = torch.zeros(1, SHAPES.num_coordinates)
    buffers = local.init(x)
    with torch.no_grad():
        moved = [float(local(torch.ones_like(x), x, buffers, t)[0][0, 0]) for t in range(4)]
    assert moved == pytest.approx([-rate(t) / (t + 1) ** 2 for t in range(4)])


def test_an_optimizer_may_want_a_rate_or_give_parameters_other_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opts_positive.py").write_text(COUNTS)
    for name, moved in (("Positive", -0.3), ("Replaces", -0.6), ("TensorRate", -0.3)):
        config = compose([f"optim=opts_positive:{name}", "task=quadratics"])
        local = config.optim.rule(lambda t: 0.1 * t, SHAPES)
        x = torch.zeros(1, SHAPES.num_coordinates)
        buffers = local.init(x)
        for t in range(3):
            x, buffers = local.adapt(x, torch.ones_like(x), buffers, t)
        assert torch.allclose(x, torch.tensor(moved))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("optim=opts_refused:Hidden", "keeps data outside its parameters' state|keeps or changes"),
        (
            "optim=opts_refused:TensorInGroup",
            r"changes a tensor \('taken'\) in its param_groups, .* keep it in state\[parameter\], as a tensor",
        ),
        ("optim=opts_refused:ReplacedTensorInGroup", r"changes a tensor \('taken'\) in its param_groups"),
        ("optim=opts_refused:Late", "keeps or changes 'slow', which is not in its parameters' state"),
        ("optim=opts_refused:Counts", "keeps or changes 'count', which is not in its parameters' state"),
        ("optim=opts_refused:Switches", "keeps or changes 'phase', which is not in its parameters' state"),
        ("optim=opts_refused:two_groups", "has 2 parameter groups instead of one"),
        ("optim=opts_refused:noisy", "or draws at random"),
        ("optim=opts_refused:Listed", "keeps a list \\('losses'\\) in its state"),
    ],
)
def test_an_optimizer_that_cannot_be_several_workers_is_refused(tmp_path, monkeypatch, words: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opts_refused.py").write_text(COUNTS)
    with pytest.raises(ConfigError, match=says):
        compose(["task=quadratics", *words.split()])


def test_torchs_own_are_not_foreign_to_a_run_that_is_loaded() -> None:
    named = (("optim", "torch.optim:Rprop"), ("lr_schedules", "torch.optim.lr_scheduler:StepLR"))
    assert not any(is_foreign(package, name) for package, name in named)
    assert all(is_foreign(package, f"torch.hub:{name}") for package, name in named)


def test_a_gradient_with_weight_decay_gets_no_more_of_it() -> None:
    x, layout = torch.ones(1, 1), RowLayout.flat(1)
    local = compose(["optim=torch.optim:Adam", "optim.weight_decay=0.1", "task=quadratics"]).optim.rule(rate, layout)
    buffers = local.init(x)
    d, _ = local.direction(local.regularised(-0.15 * x, x), x, buffers, 0)
    torch.testing.assert_close(d, -x)  # the sign of -0.15 + 0.1


def test_an_algorithm_with_a_momentum_refuses_updates_that_are_not_proportional_to_the_rate(start) -> None:
    with pytest.raises(ConfigError, match="updates that are not proportional to the learning rate"):
        configure_and_step("algo=qg_dpsgd", "topology=ring", "optim=torch.optim:Rprop")


def configure_and_step(*words: str) -> None:
    config = configure(*SMALL, *words, "num_workers=3", "processes=1", "device=cpu")
    with torch.no_grad():
        assemble(prepare(config), World(0, 1, torch.device("cpu"))).stepper.step()


SCHEDULERS = [
    ("StepLR", {"step_size": 4, "gamma": 0.5}, "step"),
    ("StepLR", {"step_size": 1}, "epoch"),
    ("CosineAnnealingLR", {"T_max": 20, "eta_min": 0.1}, "step"),
    ("CosineAnnealingWarmRestarts", {"T_0": 5}, "step"),
    ("ExponentialLR", {"gamma": 0.9}, "step"),
    ("MultiStepLR", {"milestones": [3, 7]}, "step"),
    ("OneCycleLR", {"max_lr": 1.0}, "step"),
    ("PolynomialLR", {"total_iters": 12, "power": 2.0}, "step"),
    ("ConstantLR", {"factor": 0.5, "total_iters": 3}, "step"),
    ("LinearLR", {"start_factor": 0.25}, "epoch"),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 4}, "step"),
]


@pytest.mark.parametrize(("name", "settings", "unit"), SCHEDULERS)
def test_a_scheduler_of_torch_has_its_rates(name: str, settings: dict, unit: str) -> None:
    words = [f"schedule.{key}={str(value).replace(' ', '')}" for key, value in settings.items()]
    chosen = [f"schedule=torch.optim.lr_scheduler:{name}", f"schedule.unit={unit}", *words, "task=quadratics"]
    rates = compose(chosen).schedule.rates(5.0, 25)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    further = {"total_steps": 25} if name == "OneCycleLR" else {}
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **settings, **further)
    expected = []
    for t in range(25):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if unit == "step" or t % 5 == 4:
            scheduler.step()
    assert [rates(t) for t in (*range(24, -1, -1), *range(25))] == [*expected[::-1], *expected]


MADE = """
from torch.optim.lr_scheduler import *


class Decays(LRScheduler):
    def get_lr(self):
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.1 * self.last_epoch
        return [group["lr"] for group in self.optimizer.param_groups]


def two(optimizer, factor: float = 0.1):
    parts = [ConstantLR(optimizer, factor, 4), MultiplicativeLR(optimizer, lambda t: 0.9)]
    return SequentialLR(optimizer, parts, [4])


def chained(optimizer):
    return ChainedScheduler([ConstantLR(optimizer, 0.5, 4), ExponentialLR(optimizer, 0.9)])


def falls(t, factor: float = 0.5):
    return factor**t


def nothing(optimizer):
    return None
"""
CHANGING = {
    "optim=momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "optim=sgd": lambda p: torch.optim.SGD(p, 0.1),
    "optim=momentum optim.nesterov=true": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "optim=adam": lambda p: torch.optim.Adam(p, 0.1),
    "optim=adamw": lambda p: torch.optim.AdamW(p, 0.1),
    "optim=torch.optim:SGD optim.momentum=0.9 optim.weight_decay=0.1": lambda p: torch.optim.SGD(
        p, 0.1, 0.9, weight_decay=0.1
    ),
    "optim=torch.optim:NAdam": lambda p: torch.optim.NAdam(p, 0.1),
}
TORCHS = "torch.optim.lr_scheduler"
CYCLES = {
    f"{TORCHS}:OneCycleLR schedule.max_lr=2": lambda L, o: L.OneCycleLR(o, 0.2, total_steps=12),
    f"{TORCHS}:CyclicLR schedule.base_lr=0.5 schedule.max_lr=2 schedule.step_size_up=3 schedule.base_momentum=0.5": (
        lambda L, o: L.CyclicLR(o, 0.05, 0.2, 3, base_momentum=0.5)
    ),
    "made_schedulers:two schedule.factor=0.25": lambda L, o: L.two(o, 0.25),
    "made_schedulers:chained": lambda L, o: L.chained(o),
    "made_schedulers:Decays": lambda L, o: L.Decays(o),
    "made_schedulers:falls": lambda L, o: L.LambdaLR(o, lambda t: 0.5**t),
}


@pytest.mark.parametrize("optim", CHANGING)
def test_a_scheduler_changes_settings_as_in_torch(tmp_path, monkeypatch, optim):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made_schedulers.py").write_text(MADE)
    signature.function.cache_clear()
    layout, x0 = RowLayout(("weight",), ((3,),)), torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64)
    for words, make in list(CYCLES.items())[:: 1 if optim == "optim=momentum" else 4]:
        config = compose(["task=quadratics", *optim.split(), *f"schedule={words}".split()])
        rates, changes = config.schedule.rates(5.0, 12), config.schedule.group_settings(config.optim, 5.0, 12)
        rule = config.optim.rule(lambda t, rates=rates: 0.1 * rates(t), layout)
        rule, x = rule if changes is None else rule.scheduled(changes), x0.clone()
        theirs = torch.nn.Parameter(x0.clone())
        optimizer = CHANGING[optim]([theirs])
        scheduler, buffers = make(import_module("made_schedulers"), optimizer), rule.init(x)
        for t in range(12):
            g = torch.from_numpy(np.random.default_rng(t).normal(size=(1, 3)))
            theirs.grad = g.clone()
            optimizer.step()
            with torch.no_grad():
                x, buffers = rule.adapt(x, g, buffers, t)
            torch.testing.assert_close(x, theirs.data, rtol=0, atol=1e-12, msg=f"{words}, step {t}")
            if t < 11:
                scheduler.step()
    with pytest.raises(ConfigError, match="changes weight_decay, which this algorithm applies before"):
        config = compose(["task=quadratics", *optim.split(), "schedule=made_schedulers:Decays"])
        changes = config.schedule.group_settings(config.optim, 5.0, 12)
        config.optim.rule(lambda t: 0.1, layout).scheduled(changes).direction(x, x, buffers, 3) if changes(3) else None
    with pytest.raises(ConfigError, match="made_schedulers:nothing returns a NoneType: return a scheduler of torch"):
        compose(["task=quadratics", "schedule=made_schedulers:nothing"])


def test_a_scheduler_that_cycles_the_momentum_needs_one(start) -> None:
    chosen = ["task=quadratics", "num_workers=2", "algo=allreduce", "optim=torch.optim:Adagrad", "steps=2"]
    chosen += ["schedule=torch.optim.lr_scheduler:OneCycleLR", "schedule.max_lr=1"]
    with pytest.raises(ConfigError, match="optimizer must support momentum"):
        start(*chosen)
    start(*chosen, "schedule.cycle_momentum=false", directory="without")


# -- Muon, against its polynomial applied to singular values, and against torch's --------------------------------------

MATRICES = RowLayout(
    ("tokens.weight", "a.weight", "b.weight", "kernel", "a.bias", "c.weight", "out.weight", "out.bias"),
    ((7, 3), (6, 4), (4, 6), (3, 2, 2, 1), (6,), (6, 4), (5, 4), (5,)),
)
ADAMW = [0, 4, 6, 7]  # the embedding, vectors, and the last matrix
SCALES = {
    Scale.original: lambda r, c: max(1, r / c) ** 0.5,
    Scale.match_rms_adamw: lambda r, c: 0.2 * max(r, c) ** 0.5,
    Scale.spectral: lambda r, c: (r / c) ** 0.5,
    Scale.none: lambda r, c: 1,
}


def by_singular_values(d: torch.Tensor, polynomial: Polynomial, epsilon: float = 0.0) -> torch.Tensor:
    U, s, Vh = torch.linalg.svd(d.flatten(1), full_matrices=False)
    norm = (s**2).sum() ** 0.5 + epsilon
    s = s / (1.02 * norm + 1e-6 if polynomial is Polynomial.polar_express else norm)
    for a, b, c in _COEFFICIENTS[polynomial]:
        s = a * s + b * s**3 + c * s**5
    return (U * s @ Vh).view(d.shape)


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize(
    ("polynomial", "nesterov"), [*((each, True) for each in Polynomial), (Polynomial.quintic, False)]
)
def test_muon_is_its_formula_for_every_worker(scale: Scale, polynomial: Polynomial, nesterov: bool) -> None:
    rule = Muon(scale=scale, polynomial=polynomial, nesterov=nesterov, momentum=0.8, weight_decay=0.3, adamw_scale=0.5)
    local, P = rule.rule(rate, MATRICES), MATRICES.num_coordinates
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(K, P)))
    places = list(zip(MATRICES.slices, MATRICES.shapes, strict=True))
    theirs = [[torch.nn.Parameter(row[place].view(shape)) for place, shape in places] for row in x.clone()]
    adamw = [torch.optim.AdamW([row[i] for i in ADAMW], betas=(0.9, 0.95), weight_decay=0.3) for row in theirs]
    m = [[torch.zeros_like(each) for each in row] for row in theirs]
    buffers = local.init(x)
    assert sum(buffer.shape[1] for buffer in buffers) < 2 * P
    for t in range(6):
        g = torch.from_numpy(np.random.default_rng(t).normal(size=(K, P)))
        for i in range(K):
            gradients = [g[i, place].view(shape).clone() for place, shape in places]
            for each in ADAMW:
                theirs[i][each].grad = gradients[each]
            adamw[i].param_groups[0]["lr"] = 0.5 * rate(t)
            adamw[i].step()
            for each in set(range(len(places))) - set(ADAMW):
                w, new = theirs[i][each], gradients[each]
                m[i][each] = 0.8 * m[i][each] + new
                d = new + 0.8 * m[i][each] if nesterov else m[i][each]
                r, c = w.flatten(1).shape
                d = SCALES[scale](r, c) * by_singular_values(d, polynomial)
                w.data = (1 - 0.3 * rate(t)) * w.data - rate(t) * d
        x, buffers = local.adapt(x, g, buffers, t, out=g if t == 3 else None)
        x = x.clone()
        expected = torch.stack([torch.cat([one.flatten() for one in row]) for row in theirs])
        torch.testing.assert_close(x, expected.detach(), rtol=0, atol=1e-10)


def test_muon_takes_a_fused_matrix_for_several() -> None:
    cut = RowLayout(("queries", "keys", "values", "wide", "head"), ((3, 3), (3, 3), (3, 3), (2, 3), (2, 3)))
    whole = RowLayout(("queries_keys_values", "fused.wide", "head"), ((9, 3), (2, 3), (2, 3)))
    x0 = torch.from_numpy(np.random.default_rng(0).normal(size=(K, whole.num_coordinates)))
    moved = []
    for layout, fused in ((cut, []), (whole, ["fused", "keys"]), (whole, [])):
        local, x = Muon(fused=fused).rule(rate, layout), x0.clone()
        buffers = local.init(x)
        for t in range(3):
            g = torch.from_numpy(np.random.default_rng(t).normal(size=x.shape))
            x, buffers = local.adapt(x, g, buffers, t)
        moved.append(x)
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=1e-13)
    assert (moved[2] - moved[0]).abs().max() > 1e-3


def gram_schmidt(A: torch.Tensor) -> torch.Tensor:
    columns: list[torch.Tensor] = []
    for a in A.T:
        for _ in range(2):
            a = a - sum((u @ a * u for u in columns), torch.zeros_like(a))
        columns.append(a / a.norm() if a.norm() else a)
    return torch.stack(columns, dim=1)


def test_dion_is_that_of_one_worker_with_the_mean_gradient() -> None:
    """x and the mean of the momenta, written plainly; each worker's own momentum follows from its gradients."""
    n, P, mu, wd, rank, quiet = 3, MATRICES.num_coordinates, 0.8, 0.2, 2, 3
    dion = components("algorithms")["dion"](rank=rank, mu=mu)
    net = LocalNetwork(configure("task=quadratics", "num_workers=3").rounds(), Losses(0.0, 0))
    compressor = components("compression")["none"]().bound(MATRICES, 0)
    algorithm = dion.bind(AdamW(weight_decay=wd).rule(rate, MATRICES), compressor)
    x0 = torch.from_numpy(np.random.default_rng(0).normal(size=P))
    state = algorithm.init(x0.repeat(n, 1), net)
    assert sum(each.numel() for each in state.Q.split([4 * 2, 6 * 2, 4 * 2, 4 * 2])) == len(state.Q)
    places, shapes = MATRICES.slices, MATRICES.shapes
    hidden = sorted(set(range(len(places))) - set(ADAMW))
    y = [torch.nn.Parameter(x0[place].clone()) for place in places]
    adamw = torch.optim.AdamW([y[i] for i in ADAMW], weight_decay=wd)
    matrices = [y[i].data.view(shapes[i]).flatten(1) for i in hidden]
    B, M, Q, start = [torch.zeros_like(X) for X in matrices], x0.new_zeros(n, P), [], 0
    for X in matrices:
        Q.append(state.Q[start : start + X.shape[1] * rank].view(-1, rank).clone())
        start += X.shape[1] * rank
    for t in range(6):
        g = torch.from_numpy(np.random.default_rng(t).normal(size=(n, P)))
        if t < 2:
            g[:, places[quiet]] = 0.0
        for i in ADAMW:
            y[i].grad = g[:, places[i]].mean(0)
        adamw.param_groups[0]["lr"] = rate(t)
        adamw.step()
        for j, (i, X) in enumerate(zip(hidden, matrices, strict=True)):
            r, c = X.shape
            B[j] += g[:, places[i]].mean(0).view(r, c)
            U = gram_schmidt(B[j] @ Q[j])
            R = B[j].T @ U
            B[j] -= (1 - mu) * U @ R.T
            M[:, places[i]] += g[:, places[i]] - (1 - mu) * (U @ R.T).flatten()
            new = R / (R.norm(dim=0) + 1e-8)
            Q[j] = new if R.any() else Q[j]
            X -= rate(t) * ((r / c) ** 0.5 * U @ new.T + wd * X)
        state = algorithm.step(state, lambda x, g=g: g.clone(), net, t)
        expected = torch.cat([each.data for each in y])
        torch.testing.assert_close(state.x, expected.repeat(n, 1), rtol=0, atol=1e-11)
        torch.testing.assert_close(state.M, M, rtol=0, atol=1e-11)
        for j, i in enumerate(hidden):
            torch.testing.assert_close(state.M[:, places[i]].mean(0), B[j].flatten(), rtol=0, atol=1e-11)


def test_muon_in_bf16_is_that_of_torch() -> None:
    layout = RowLayout(("a", "b"), ((6, 4), (4, 6)))
    rule = Muon(compute=Compute.bf16, scale=Scale.original, adamw_last=False).rule(rate, layout)
    named = compose(["optim=torch.optim:Muon", "task=quadratics"]).optim.rule(rate, layout)
    x0 = torch.from_numpy(np.random.default_rng(0).normal(size=(K, 48)))
    moved = []
    for local in (rule, named):
        x, buffers = x0.clone(), local.init(x0)
        with torch.no_grad():
            for t in range(5):
                g = torch.from_numpy(np.random.default_rng(t).normal(size=(K, 48)))
                x, buffers = local.adapt(x, g, buffers, t)
        moved.append(x - x0)
    assert (moved[0] - moved[1]).abs().max() < 0.03 * moved[1].abs().max()  # the roundings of bf16


def test_muon_makes_directions_whose_length_does_not_count() -> None:
    muon = Muon()
    d = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 3)))
    torch.testing.assert_close(muon.orthogonal(1e3 * d), muon.orthogonal(d), rtol=0, atol=1e-9)
    torch.testing.assert_close(muon.orthogonal(d.mT), muon.orthogonal(d).mT, rtol=0, atol=1e-12)
    assert not muon.orthogonal(torch.zeros(5, 3)).any()
    values = torch.linalg.svdvals(muon.orthogonal(d))
    assert values.min() > 0.6 and values.max() < 1.25


IMAGES = ["data=digits", "model=cnn", "optim=muon", "optim.clip_norm=1", "num_workers=4",
          "precision=fp64", "batch_size=8", "steps=5", "lr=0.02", "trace=true", "save=none",
          "evaluation.every_epochs=9", "evaluation.initial=false"]  # fmt: skip


@pytest.mark.parametrize(
    ("words",),
    a_third(
        [
            ("algo=dpsgd topology=ring",),
            ("algo=dion algo.rank=3 optim=sgd",),
            ("algo=demo compress=dct_topk compress.k=4 lr=0.003 optim=sgd",),
        ]
    ),
)
def test_methods_of_layers_agree_over_processes_executions_and_a_break(start, words: str) -> None:
    settings = [*IMAGES, *words.split(), "checkpoint_every_s=0"]
    whole = start(*settings, directory="whole")
    for way in ("loop", "batched"):
        found = start(*settings, f"execution={way}", directory=way)
        assert np.abs(found.iterates - whole.iterates).max() < 1e-9
    two = start(*settings, processes=2, directory="two")
    assert np.abs(two.iterates - whole.iterates).max() < 1e-9
    assert two.rows[-1]["bytes_sent"] == whole.rows[-1]["bytes_sent"]
    assert start(*settings, directory="broken", interrupt_at=3).status == "interrupted"
    np.testing.assert_array_equal(start(*settings, directory="broken").iterates, whole.iterates)


def test_muon_takes_matrices_of_several_shapes_in_groups() -> None:
    words = [*IMAGES, "algo=dpsgd", "topology=ring", "processes=1", "device=cpu"]
    run = assemble(prepare(configure(*words)), World(0, 1, torch.device("cpu")))
    assert len(run.algorithm.local.optimizer._groups) > 1


TEN = 10.0  # steps per epoch
SCHEDULES = [
    (Constant(), {0: 1, 999: 1}),
    (Inverse(), {0: 1, 1: 1 / 2, 99: 1 / 100}),
    (Exponential(gamma=0.9), {0: 1, 9: 1, 10: 0.9, 19: 0.9, 20: 0.81, 500: 0.9**50}),
    (MultiStep(), {0: 0, 5: 0.1, 25: 0.5, 50: 1, 1499: 1, 1500: 0.1, 1799: 0.1, 1800: 0.01, 5000: 0.01}),
    (MultiStep(warmup_from=0.5, milestones=[30, 60, 80]), {0: 0.5, 25: 0.75, 50: 1, 300: 0.1, 600: 0.01, 800: 0.001}),
    (MultiStep(warmup_epochs=0, milestones=[1], gamma=0.5), {0: 1, 9: 1, 10: 0.5}),
    (InverseSqrt(warmup_steps=4), {0: 1 / 4, 3: 1, 15: 1 / 2, 399: 1 / 10}),
    (MultiStep(milestones=[2], warmup_epochs=4), {0: 0, 19: 19 / 40, 20: 0.05, 40: 0.1}),
    (Cosine(), {0: 1, 25: (1 + 0.5**0.5) / 2, 50: 0.5, 100: 0, 120: 0}),
    (Cosine(warmup_epochs=2, final_factor=0.2), {0: 0, 10: 0.5, 20: 1, 60: 0.6, 100: 0.2}),
    (Linear(final_factor=0.5, warmup_epochs=5, warmup_from=0.2), {0: 0.2, 25: 0.6, 50: 1, 75: 0.75, 100: 0.5}),
    (Exponential(gamma=0.5, final_factor=0.1, warmup_epochs=1), {0: 0, 5: 0.5, 10: 0.5, 40: 0.1}),
]


def test_a_schedule_follows_its_formula():
    for schedule, factors in SCHEDULES:
        assert {t: schedule.rates(TEN, 100)(t) for t in factors} == pytest.approx(factors, rel=1e-12, abs=1e-15)


def test_a_schedule_of_the_length_of_the_run_needs_one():
    with pytest.raises(ConfigError, match="schedule=cosine needs the length of a run"):
        Cosine().rates(1.0, None)


def test_a_user_schedule_knows_the_length_of_the_run():
    @dataclass
    class Triangle(LearningRateSchedule):
        peak: float
        name: str = "triangle"

        def factor(self, t, steps_per_epoch, total_steps):
            return 1 - abs(2 * t / total_steps - self.peak)

    @dataclass
    class Ramp(LearningRateSchedule):
        name: str = "ramp"
        warmup_epochs: int = 4

        def factor(self, t, per_epoch):
            return min(1.0, t / per_epoch / self.warmup_epochs)

    assert [Triangle(1.0, final_factor=0.1).rates(7.0, 8)(t) for t in (0, 2, 4)] == [0.1, 0.5, 1]
    assert [Ramp().rates(2.0, 8)(t) for t in (0, 2, 4, 8)] == [0, 0.25, 0.5, 1]


@pytest.mark.parametrize("steps_per_epoch", [3.0, 7.0, 49.0, 97.0])
def test_the_exponential_schedule_drops_on_the_first_step_of_an_epoch(steps_per_epoch):
    for epoch in range(1, 200):
        t = round(epoch * steps_per_epoch)
        assert Exponential().factor(t, steps_per_epoch) == 0.9**epoch
        assert Exponential().factor(t - 1, steps_per_epoch) == 0.9 ** (epoch - 1)


def test_a_run_follows_its_schedule(start):
    same_functions = ["task=quadratics", "task.zeta2=0", "task.singular_min=1", "task.initial_distance=100"]
    run = ["algo=allreduce", "num_workers=2", "lr=0.5", "schedule=inverse", "steps=8", "evaluation.every_epochs=1"]
    result = start(*same_functions, *run)
    left = [row["value"] for row in result.rows if (row["metric"], row["worker"]) == ("distance_to_optimum", 0)]
    expected = 100 * np.cumprod([1, *(1 - 0.5 / (t + 1) for t in range(8))])  # the Hessian is the identity
    np.testing.assert_allclose(left, expected, rtol=1e-9)


PARTS = [np.arange(100 * w, 100 * w + size) for w, size in enumerate((23, 40, 7, 30))]  # 25 for each in an epoch


def order(workers: range, reshuffle: bool = True, drop_last: bool = True, seed: int = 0) -> BatchOrder:
    return BatchOrder(PARTS, workers, batch_size=4, seed=seed, reshuffle=reshuffle, drop_last=drop_last)


def test_a_batch_depends_on_worker_and_step_alone():
    everybody = order(range(4))
    history = [everybody(step) for step in range(40)]
    alone = order(range(3, 4))
    assert torch.equal(alone(17)[0], history[17][3])
    assert torch.equal(alone(3)[0], history[3][3])  # going back, too
    assert torch.equal(order(range(2, 4))(31), history[31][2:])


@pytest.mark.parametrize(("drop_last", "steps", "samples"), [(True, 6, 24), (False, 7, 25)])
def test_an_epoch_takes_equally_many_samples_of_each_part(drop_last, steps, samples):
    batches = order(range(4), drop_last=drop_last)
    assert batches.steps_per_epoch() == steps
    assert batches.examples(0, 2 * steps + 1) == 2 * samples + 4
    epoch = torch.cat([batches(step) for step in range(steps)], dim=1)
    assert epoch.shape == (4, samples)
    for worker, part in enumerate(PARTS):
        seen, counts = np.unique(epoch[worker], return_counts=True)
        assert set(seen) <= set(part)
        assert len(seen) == min(len(part), samples)
        assert counts.max() - counts.min() <= 1  # a small part is gone through again and again


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    def first_epoch(batches: BatchOrder, epoch: int) -> torch.Tensor:
        return torch.cat([batches(6 * epoch + step) for step in range(6)], dim=1)

    assert not torch.equal(first_epoch(order(range(4)), 0), first_epoch(order(range(4)), 1))
    assert not torch.equal(first_epoch(order(range(4)), 0), first_epoch(order(range(4), seed=1), 0))
    forever = order(range(4), reshuffle=False)
    assert torch.equal(first_epoch(forever, 0), first_epoch(forever, 1))


# -- What sets recent methods apart ------------------------------------------------------------------------------------

SMALL = [
    "task=quadratics",
    "task.dimension=6",
    "task.initial_distance=1",
    "num_workers=6",
    "trace=true",
    "evaluation.every_epochs=5000",
]


OUTER = ("task=quadratics", "task.dimension=6", "task.initial_distance=1", "lr=0.05", "trace=true", "steps=36",
         "evaluation.every_epochs=36")  # fmt: skip


def test_methods_that_average_parts_send_these_alone(start) -> None:
    """A ring's all-reduce of m numbers: each worker sends 2 (n - 1) / n of them."""
    n, P, steps = 5, 6, 36
    sent = start("algo=desloc", "algo.period_steps=2", f"num_workers={n}", *OUTER, "optim=adam", directory="desloc")
    assert sent.rows[-1]["bytes_sent"] == 2 * (n - 1) * P * 8 * (steps // 2 + steps // 6 + steps // 12)
    drawn = [SPARTA(share=0.3).places(P, t) for t in range(steps)]
    sent = start("algo=sparta", "algo.share=0.3", f"num_workers={n}", *OUTER, directory="sparta")
    assert sent.rows[-1]["bytes_sent"] == 2 * (n - 1) * 8 * sum(map(len, drawn))


def test_a_timeline_of_a_large_model_sends_what_is_drawn_of_it() -> None:
    P, steps = 3_000_000, 4
    words = ("task=quadratics", "cluster=even", "num_workers=4", "algo=sparta", "algo.share=0.001")
    for select in Select:
        drawn = sum(len(SPARTA(share=0.001, select=select).places(P, t)) for t in range(steps))
        config = configure(*words, f"algo.select={select.value}")
        assert timed(prepare(config), steps, P).bytes_sent == 2 * 3 * 8 * drawn


def test_sparta_draws_each_coordinate_as_often_as_it_says() -> None:
    P, p, steps = 40, 0.1, 4000
    for select in Select:
        method = SPARTA(share=p, select=select)
        drawn = [method.places(P, t) for t in range(steps)]
        assert all(len(set(M.tolist())) == len(M) for M in drawn)
        often = np.bincount(np.concatenate(drawn), minlength=P) / steps
        assert np.abs(often - p).max() < 5 * (p / steps) ** 0.5
        cycles = [tuple(np.concatenate(drawn[t : t + 10]).tolist()) for t in range(0, 100, 10)]
        if select is Select.random:
            assert np.var(list(map(len, drawn))) == pytest.approx(P * p * (1 - p), rel=0.1)
        else:
            assert all(sorted(cycle) == list(range(P)) for cycle in cycles)
            assert len(set(cycles)) == (1 if select is Select.shuffled else 10)
    assert len(SPARTA(share=0.3, select=Select.shuffled).places(P, 0)) == P // 4


def test_gt_nsgdm_takes_no_step_where_nothing_is_tracked() -> None:
    still = components("algorithms")["gt_nsgdm"]().bind(LocalRule(SGD(), lambda t: 0.1))
    net = LocalNetwork(components("topology")["ring"]().schedule(4), Losses(0.0, 0))
    state = still.step(still.init(torch.ones(4, 3).double(), net), torch.zeros_like, net, 0)
    assert torch.equal(still.models(state), torch.ones(4, 3).double())


def test_teleportation_sends_a_model_to_each_that_comes_next_and_along_the_small_graph(start) -> None:
    found = start("algo=teleportation", "algo.active=4", "num_workers=8", *OUTER, "steps=10")
    method = Teleportation(active=4)
    moved = sum(int((method.workers(8, t) != method.workers(8, t + 1)).sum()) for t in range(10))
    assert found.rows[-1]["bytes_sent"] == (10 * 4 * 2 + moved) * 6 * 8


def test_the_warm_up_of_sparseloco_is_in_epochs_of_its_steps():
    """A period is two epochs of this task: in a warm-up of four, 1, then (1 + 0.5) / 2 = 0.75 of 6 numbers are sent."""
    settings = ("algo=sparseloco algo.period_steps=2", "compress=topk compress.keep=0.5 compress.warmup_epochs=4")
    words = [word for setting in settings for word in setting.split()]
    config = configure(*SMALL, *words, "num_workers=2", "processes=1", "device=cpu")
    run, sent = assemble(prepare(config), World(0, 1, torch.device("cpu"))), []
    with torch.no_grad():
        for _ in range(4):
            before = run.net.traffic.bytes_sent
            run.stepper.step()
            run.stepper.step()
            sent.append(run.net.traffic.bytes_sent - before)
    assert sent[0] > sent[1] > sent[2] == sent[3] > 0
