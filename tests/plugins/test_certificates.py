"""Certificates: independent formulas, exact arithmetic, real runs, and refusals."""

from __future__ import annotations

import io
import json
import re
import runpy
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import decentral
from decentral.algorithms.dpsgd import DPSGD
from decentral.cli.check import main
from decentral.cli.run import main as run_command
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.plugins.certificates.certify import Certifier, Terms, facts_text, method_of
from decentral.plugins.certificates.checks.certify import certify as report
from decentral.plugins.certificates.quadratics import Piece
from decentral.plugins.certificates.trace import Method, NotLinear, coefficients, run
from decentral.plugins.certificates.worst_case import certified, forms_of, pairs, traced, worst_case
from decentral.registry import components
from decentral.report.results import read

pytestmark = pytest.mark.usefixtures("undrawn")

MU, L = 0.1, 1.0


def method(*words: str, n: int = 8) -> Method:
    return method_of(compose(["task=quadratics", f"num_workers={n}", *words]))


def pieces(*words: str, n: int = 8, lr: float = 0.1) -> list[Piece]:
    return Certifier(method(*words, n=n), lr).at(lr)


def bias(piece: Piece, h: np.ndarray, b: np.ndarray) -> np.ndarray:
    return piece.fixed_point(h, h * b) - (h @ b) / h.sum()


def problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    return generator.uniform(0.2, 1.0, n), generator.standard_normal(n)


def test_rates_of_gradient_descent_and_momentum_are_the_known_ones() -> None:
    lr, beta = 0.3, 0.6
    for words, companion in (
        (("optim.momentum=0",), lambda h: [[1 - lr * h]]),
        ((f"optim.momentum={beta}", "optim.nesterov=false"), lambda h: [[1 + beta - lr * h, -beta], [1, 0]]),
        (
            (f"optim.momentum={beta}", "optim.nesterov=true"),
            lambda h: [[(1 + beta) * (1 - lr * h), -beta * (1 - lr * h)], [1, 0]],
        ),
    ):
        (piece,) = pieces("algo=allreduce", "optim=sgd", *words, lr=lr)
        for h in (0.1, 0.4, 1.0, 3.0):
            expected = np.abs(np.linalg.eigvals(np.array(companion(h)))).max()
            assert piece.rate(np.full(8, h)) == pytest.approx(expected, abs=1e-9)


def test_dpsgd_on_quadratics_has_the_closed_form() -> None:
    lr, n = 0.1, 8
    h, b = problem(n)
    W = compose(["task=quadratics", "algo=dpsgd", "topology=ring", "num_workers=8"]).rounds().matrices(0)[0]
    for mode in ("atc", "awc"):
        (piece,) = pieces("algo=dpsgd", "topology=ring", f"algo.mode={mode}")
        step = W @ (np.eye(n) - lr * np.diag(h)) if mode == "atc" else W - lr * np.diag(h)
        driven = lr * (W if mode == "atc" else np.eye(n))
        fixed = np.linalg.solve(np.eye(n) - step, driven @ (h * b))
        covariance = np.linalg.solve(np.eye(n * n) - np.kron(step, step), (driven @ driven.T).ravel()).reshape(n, n)
        assert piece.rate(h) == pytest.approx(np.abs(np.linalg.eigvals(step)).max(), abs=1e-12)
        np.testing.assert_allclose(bias(piece, h, b), fixed - h @ b / h.sum(), atol=1e-12)
        np.testing.assert_allclose(piece.noise(h), covariance, atol=1e-12)


def test_exact_methods_are_exact_and_stable_up_to_known_rates() -> None:
    n = 4
    h, b = problem(n)
    for words in (
        ("algo=extra", "topology=ring"),
        ("algo=gradient_tracking", "topology=ring"),
        ("algo=exact_diffusion", "topology=chain"),
        ("algo=beer", "compress=none", "topology=ring"),
        ("algo=relaysgd", "topology=dbt"),
    ):
        certifier = Certifier(method(*words, n=n), 0.1)
        assert certifier.facts["heterogeneous"] < 1e-9
        assert all(np.abs(bias(piece, h, b)).max() < 1e-9 for piece in certifier.at(0.1)), words
        assert certifier.row(0.1, Terms())["bias"] == 0, words
    (local,) = Certifier(method("algo=local_sgd", "algo.period_steps=2", n=n), 0.1).at(0.1)
    assert local.rate(np.ones(n)) == pytest.approx(0.9), "per step, not per period"
    W = compose(["algo=dpsgd", "topology=ring", f"num_workers={n}"]).rounds().matrices(0)[0]
    smallest = np.linalg.eigvalsh(W)[0]
    for words, stable in (  # Yuan, Ling & Yin 2016; Li & Yan 2021
        (("algo=dpsgd", "algo.mode=awc"), 1 + smallest),
        (("algo=extra",), (5 + 3 * smallest) / 4),
        (("algo=allreduce",), 2.0),
    ):
        found = Certifier(method(*words, "topology=ring", n=n), 0.1).largest_stable(Terms())
        assert found == pytest.approx(stable, rel=2e-5)


@pytest.mark.slow
def test_a_rate_of_marginal_stability_is_the_limit() -> None:
    certifier = Certifier(method("algo=gradient_tracking", "topology=one_peer_exponential"), 0.1)
    assert max(piece.rate(np.full(8, L)) for piece in certifier.at(1.2)) < 1  # stable beyond it
    assert certifier.largest_stable(Terms()) == pytest.approx(1.0, rel=1e-4)


def test_equal_curvatures_can_be_too_optimistic() -> None:
    certifier = Certifier(method("algo=decentlam", "topology=ring"), 0.1)
    assert all(piece.rate(np.full(8, h)) < 1 for piece in certifier.at(3.7) for h in (MU, L))
    assert certifier.largest_stable(Terms()) < 1.1


def test_facts_tell_methods_apart() -> None:
    for words, mean, count, heterogeneous in (
        (("algo=dpsgd", "topology=ring"), True, 1.0, False),
        (("algo=gradient_tracking", "topology=ring"), True, 1.0, True),
        (("algo=dpsgd", "topology=ring", "optim.momentum=0.9"), False, 10.0, False),
        (("algo=relaysgd", "topology=chain"), False, 0.363636363636, True),
        (("algo=diloco", "algo.period_steps=5"), False, 7.0, False),
        (("algo=sgp", "topology=ring"), True, 1.0, False),
    ):
        facts = Certifier(method(*words), 0.1).facts
        assert (facts["mean"] < 1e-9, facts["heterogeneous"] < 1e-9) == (mean, heterogeneous), words
        assert facts["counted"] == pytest.approx(count, abs=1e-9) and facts["common"] < 1e-9 and facts["settles"]
    first = Certifier(method("algo=relaysgd", "algo.fill=count", "topology=chain"), 0.1).facts
    assert np.isnan(first["counted"]) and (first["lowest"], first["highest"]) == pytest.approx(
        (0.3636, 1.1115), abs=1e-4
    )
    decayed = Certifier(method("algo=dpsgd", "topology=ring", "optim.weight_decay=0.1"), 0.1)
    assert decayed.facts["common"] > 1e-3 and "no, moves by" in facts_text(decayed.facts)
    assert "(as with momentum and other memory)" in facts_text(first)
    row = decayed.row(0.1, Terms())
    assert row["rate"] < 1 and np.isnan(row["bias"])
    assert not Certifier(method("algo=d2", "topology=ring"), 0.1).facts["settles"]


def test_all_reduce_has_the_worst_case_of_gradient_descent_on_every_graph_without_heterogeneity() -> None:
    for words, n, steps, lr in (
        (("algo=allreduce",), 4, 3, 0.5),
        (("algo=allreduce",), 3, 2, 1.9),
        (("algo=dpsgd", "topology=ring"), 6, 3, 0.5),
        (("algo=dpsgd", "topology=chain"), 4, 3, 0.5),
        (("algo=dpsgd", "topology=one_peer_exponential"), 8, 3, 0.5),
        (("algo=dpsgd", "topology=torus"), 16, 3, 0.5),
    ):
        expected = max((1 - lr * MU) ** 2, (1 - lr * L) ** 2) ** steps
        bound = worst_case(method(*words, n=n), lr, steps, MU, L)
        assert bound["upper"] == pytest.approx(expected, rel=1e-5), words
        assert expected * (1 - 1e-5) <= bound["lower"] <= bound["upper"]


def test_symmetry_does_not_change_the_worst_case() -> None:
    for words, n, steps in (
        (("algo=dpsgd", "topology=ring"), 4, 3),
        (("algo=dpsgd", "topology=ring"), 5, 2),
        (("algo=gradient_tracking", "topology=hypercube"), 4, 3),
        (("algo=dpsgd", "topology=one_peer_exponential"), 4, 3),
    ):
        whole, reduced = (
            worst_case(method(*words, n=n), 0.4, steps, MU, L, 1.0, 0.5, reduce) for reduce in (False, True)
        )
        assert reduced["upper"] == pytest.approx(whole["upper"], rel=1e-5)
        assert len(traced(method(*words, n=n), 0.4, steps)[2]) > 1


def test_no_run_is_above_its_bound() -> None:
    n, steps, lr, zeta2, trials = 4, 3, 0.4, 0.3, 10_000
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    h = torch.where(draw(n, trials) < draw(trials), MU, L)
    g = draw(n, trials) - 0.5
    g -= g.mean(0)
    g *= (zeta2 / g.square().mean(0)).sqrt()
    x0 = torch.sign(draw(trials) - 0.5)
    for words in (
        ("algo=dpsgd", "topology=ring"),
        ("algo=dpsgd", "topology=one_peer_exponential"),
        ("algo=gradient_tracking", "topology=exponential"),
        ("algo=extra", "topology=ring"),
        ("algo=diloco", "algo.period_steps=2"),
        ("algo=relaysgd", "topology=chain"),
        ("algo=dpsgd", "topology=ring", "optim.momentum=0.9"),
    ):
        certificate = worst_case(method(*words, n=n), lr, steps, MU, L, 1.0, zeta2)
        errors = next(islice(run(method(*words, n=n), lr, h, g, x0), steps - 1, None)).square().mean(0)
        assert float(errors.max()) <= certificate["upper"], words
        assert certificate["upper"] <= certificate["lower"] * (1 + 1e-3), words


def test_bounds_hold_in_exact_arithmetic() -> None:
    for words, n, steps in (
        (("algo=dpsgd", "topology=chain"), 2, 2),
        (("algo=gradient_tracking", "topology=ring"), 3, 2),
        (("algo=allreduce",), 2, 3),
    ):
        points, final = coefficients(method(*words, n=n), steps, 0.5)
        V = np.linalg.svd(np.eye(n) - 1 / n)[0]
        upper, tau_R, tau_z, multipliers = certified(
            [forms_of(points[0], final[0], V, MU, L, True, False)], steps + 1, 1.0, 1.0
        )
        exact = np.vectorize(lambda value: Fraction(float(value)), otypes=[object])
        D, mu, smooth = (
            n + n * steps,
            Fraction(MU),
            Fraction(L),
        )  # x^0, all but the last optimum's gradients, the others
        unit = exact(np.eye(D))
        optima = [*unit[1:n], -unit[1:n].sum(0)]
        rows = exact(np.insert(np.concatenate([points[0], final]), [1] * (n - 1), 0.0, axis=2))
        S = np.full((D, D), Fraction(0))
        add = lambda u, v, weight: np.add(S, weight * (np.outer(u, v) + np.outer(v, u)) / 2, out=S)  # noqa: B023, E731
        add(unit[0], unit[0], Fraction(tau_R))
        for i in range(n):
            p = [0 * unit[0], *rows[:steps, i]]
            g = [optima[i], *unit[n + i :: n]]
            add(rows[steps, i], rows[steps, i], Fraction(-1, n))
            add(g[0], g[0], Fraction(tau_z) / n)
            flow = [Fraction(0)] * (steps + 1)
            for a, b in zip(*pairs(steps + 1), strict=True):
                weight = Fraction(float(multipliers[i, a, b]))
                assert weight >= 0
                flow[a] -= weight
                flow[b] += weight
                dp, dg = p[a] - p[b], g[a] - g[b]
                scale = weight * smooth / (2 * (smooth - mu))
                add(g[b], dp, weight)
                add(dg, dg, scale / smooth)
                add(dp, dp, scale * mu)
                add(dg, dp, -2 * scale * mu / smooth)
            assert not any(flow)
        assert _is_positive(S)
        assert upper >= tau_R + tau_z


def _is_positive(S: np.ndarray) -> bool:
    """Whether a symmetric matrix of fractions is positive definite, by elimination without rounding."""
    for k in range(len(S)):
        if S[k, k] <= 0:
            return False
        S[k + 1 :] -= np.outer(S[k + 1 :, k] / S[k, k], S[k])
    return True


UNCERTIFIED = {
    "adpsgd": "asynchronous",
    "dadam": "not linear",
    "sparta": "has no certificate",
    "noloco": "does not repeat after 50 steps",
    "teleportation": "no gradient of some workers",
    "streaming_diloco": "coordinates differently",
    "relay_mean": "estimates a mean",
}


def of_method(name: str) -> str:
    """Why a method has no certificate, on the first graph that it takes; "" if it has one."""
    words = [f"algo={name}", "optim=sgd", "compress=none"]
    words += ["algo.period_steps=4"] if name in ("diloco", "gasloc", "desloc", "sparseloco", "local_sgd") else []
    for topology in ("ring", "dbt"):
        with suppress(ConfigError):
            try:
                found = method(*words, f"topology={topology}", n=6)
                assert Certifier(found, 0.1).row(0.1, Terms())["rate"] <= 1.0001
                return ""
            except NotLinear as reason:
                return str(reason)
    return "on no graph"


@pytest.mark.slow
def test_at_least_twenty_methods_are_certified() -> None:
    assert len([name for name in components("algorithms") if not of_method(name)]) >= 20


def test_a_method_without_a_certificate_says_why() -> None:
    for name, words in UNCERTIFIED.items():
        assert words in of_method(name)
    for words, reason in (
        (("algo=choco", "compress=topk"), "certify algo=choco compress=none"),
        (("algo=dpsgd", "optim=adam"), "use optim=sgd"),
        (("algo=dpsgd", "network.drop_probability=0.1"), "leave it out"),
        (("algo=dpsgd", "lr_per_worker=[0.1,0.1,0.1,0.2]"), "leave it out"),
        (("algo=dpsgd", "communication.every=2", "steps_per_worker=[1,2,2,2]"), "leave it out"),
        (("algo=dpsgd", "schedule=cosine"), "leave it out"),
        (("algo=dion",), "has no certificate"),
    ):
        with pytest.raises(NotLinear, match=reason):
            Certifier(method(*words, n=4), 0.1)


@dataclass
class Drifting(DPSGD):
    """D-PSGD whose workers weigh their own model too little: W is only row-stochastic."""

    name: str = "drifting"

    def step(self, s: Any, oracle: Any, net: Any, t: int) -> Any:
        x, stats, opt = s
        y, opt = self.local.adapt(x, oracle(x), opt, t)
        n = net.n
        W = np.full((n, n), 1 / n)
        W[0] = [0.5, *[0.5 / (n - 1)] * (n - 1)]
        return self.State(net.mix_with(y, W), stats, opt)


def test_a_user_method_is_certified_with_its_bias() -> None:
    table = decentral.certify(Drifting(), "complete", num_workers=4, lr=[0.05, 0.2], steps=2)
    facts = table.attrs["facts"]
    assert torch.is_grad_enabled()
    assert np.isnan(facts["counted"]) and facts["lowest"] < 0.9 < 1.1 < facts["highest"]
    assert (table.bias > 0.1).all() and (table.lower <= table.upper).all()
    right = decentral.certify("dpsgd", "complete", num_workers=4, lr=[0.05, 0.2])
    assert right.attrs["facts"]["counted"] == pytest.approx(1.0) and (right.bias < table.bias).all()
    assert right.attrs["largest_stable"] == pytest.approx(2.0, rel=2e-5)


@pytest.mark.usefixtures("inline")
def test_methods_of_modules_have_their_own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "from dataclasses import dataclass\nfrom decentral.algorithms.dpsgd import DPSGD\n"
    text = "@dataclass\nclass {}(DPSGD):\n    {}\n"
    own = {"Shy": "name: str = 'shy'", "Bare": "pass", "Same": "name: str = 'shy'"}
    (tmp_path / "calm.py").write_text(head + "".join(text.format(*one) for one in own.items()))
    monkeypatch.syspath_prepend(tmp_path)
    for methods, names, folder in (
        (("dpsgd", "calm:Bare"), ["dpsgd, ring", "Bare, ring"], "dpsgd-Bare-ring-3-*"),
        (("calm:Shy", "calm:Same"), ["calm:Shy, ring", "calm:Same, ring"], "shy-ring-3-*"),
    ):
        words = ["task=quadratics", "topology=ring", "num_workers=3", f"results_dir={tmp_path}"]
        texts = report([compose([*words, f"algo={name}"]) for name in methods], {"lr": "0.1,3"})
        assert [one.partition(", for all")[0] for one in texts if "for all functions:" in one] == names
        assert sum("Largest stable learning rate: 2.\n" in one for one in texts) == len(methods)
        (stored,) = (tmp_path / "certificates").glob(f"{folder}/certificates.json")
        assert list(json.loads(stored.read_text())["largest_stable"]) == names


def test_the_reason_for_no_certificate_is_one_of_four() -> None:
    def cls(change: Callable[[Any, int], Any]) -> type:
        def step(self: DPSGD, s: Any, oracle: Any, net: Any, t: int) -> Any:
            y, opt = self.local.adapt(s.x, change(oracle(s.x), t), s.opt, t)
            return self.State(net.mix(y, t), s.compression_stats, opt)

        return dataclass(type("Changed", (DPSGD,), {"step": step, "name": "changed", "__annotations__": {"name": str}}))

    for change, reason in (
        (lambda g, t: g * torch.rand(1).item(), "is random"),
        (lambda g, t: g.abs(), "is not linear in its gradients"),
        (lambda g, t: g / (t + 1), "does not repeat after 1 step"),
        (lambda g, t: g * (1 + torch.arange(g.shape[1]) % 2), "treats coordinates differently"),
    ):
        with pytest.raises(NotLinear, match=f"because it {reason} with"):
            decentral.certify(cls(change), "ring", num_workers=4, lr=0.1)
    rising = cls(lambda g, t: -g)
    assert decentral.certify(rising, "ring", num_workers=4, lr=0.1).attrs["largest_stable"] == 0
    with pytest.raises(NotLinear, match="is stable at no learning rate"):
        decentral.certify(rising, "ring", num_workers=4)


@pytest.mark.slow
def test_the_command_writes_table_figure_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decentral.cli.check.carry_out", lambda *_: [])  # the checks themselves
    words = ["algo=dpsgd,extra", "topology=chain", "num_workers=2", f"results_dir={tmp_path}"]
    with pytest.raises(SystemExit) as exit:
        main([*words, "certify=true", "certify.steps=1", "certify.mu=0.2"])
    out = capsys.readouterr().out
    assert exit.value.code == 0 and "all gradients have the same total weight" in out
    assert "Largest stable learning rate: 2" in out
    (folder,) = (tmp_path / "certificates").glob("dpsgd-extra-chain-2-*")
    assert {"certificates.csv", "certificates.json", "certificates.png"} < {file.name for file in folder.iterdir()}
    assert "searching for the largest stable learning rate of algo=extra" in out and "learning rate 5 of 24" in out
    assert 9 < len(re.findall(r"^ *[0-9.]+ +0\.", out, re.M)) < 16
    stored = json.loads((folder / "certificates.json").read_text())
    assert [one["algo"]["name"] for one in stored["methods"]] == ["dpsgd", "extra"] and stored["terms"]["steps"] == 1
    (figure,) = (results := read(folder)).spec.figures
    lines = figure.data(results)
    assert {line.key for line in lines} == {("dpsgd, chain",), ("extra, chain",)}
    assert len({line.panel for line in lines}) == 5 and all(len(line.x) == 25 for line in lines)
    rates = [1 - y for line in lines if line.panel == "1 - rate per step" for y in line.y]
    assert figure.logy and max(rates) < 0.9999


def test_the_command_refuses_wrong_settings_before_its_checks(capsys: pytest.CaptureFixture[str]) -> None:
    for words, reason in (
        (("certify.mue=1",), "certify has no key 'mue'. Did you mean 'mu'?"),
        (("certify=true", "certify.mu=2"), "certify.mu=2 is not below certify.L=1"),
        (("certify.lr=a,b",), "certify.lr[0]='a' has the wrong type: use a number"),
        (("certify.lr=0",), "certify.lr=0 is out of range"),
        (("certify=maybe",), "certify='maybe' has the wrong type: use true or false"),
        (("certify.steps=20", "num_workers=16", "topology=chain"), "320 is too large"),
        (("certify=true", "optim=adam"), "use optim=sgd"),
    ):
        with pytest.raises(SystemExit) as exit:
            main(["algo=dpsgd", *words])
        printed = capsys.readouterr()
        assert reason in printed.err and exit.value.code == 2 and not printed.out, words
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exit:
        patch.setitem(sys.modules, "clarabel", None)
        main(["algo=dpsgd", "certify.steps=2"])
    assert "pip install '.[certificates]'" in capsys.readouterr().err and exit.value.code == 2


def test_the_page_prints_what_its_program_prints(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "certificates.md").read_text()
    program, expected = (page.split(f"<!-- {name} -->\n```")[1].split("```")[0] for name in ("certify", "certified"))
    (tmp_path / "example.py").write_text(program.removeprefix("python\n"))
    with redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(tmp_path / "example.py"))
    assert out.getvalue() == expected.removeprefix("\n")


BASE = ["task=quadratics", "schedule=constant", "lr=0.1", "task.initial_distance=1", "progress=false"]


@pytest.mark.parametrize(
    "words",
    [
        ("topology=ring", "steps=300"),
        pytest.param(("algo=relaysgd", "topology=dbt", "steps=1500"), marks=pytest.mark.slow),
        *(
            pytest.param((*words, "task.noise=1", "task.zeta2=0", "steps=2000"), marks=pytest.mark.slow)
            for words in (["topology=one_peer_exponential"], ["accumulate=4", "topology=ring"])
        ),
        ("optim.weight_decay=0.1", "topology=ring", "steps=300"),
    ],
)
def test_a_prediction_is_what_a_run_does(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as exit:
        run_command(["algo=dpsgd", "num_workers=4", f"results_dir={tmp_path}", *BASE, *words, "--predict"])
    assert exit.value.code == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-6:]]
    predicted, measured = (float(table[-1][i]) for i in (-2, -1))
    assert measured == pytest.approx(predicted, rel=0.1, abs=1e-9)
    predicted, measured = (float(table[-2][i]) for i in (-2, -1))
    assert table[-2][0] == "suboptimality," and measured == pytest.approx(predicted, rel=0.2, abs=1e-9)


@pytest.mark.usefixtures("inline")
def test_predictions_mark_runs_that_have_not_converged_and_refuse_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [*BASE, f"results_dir={tmp_path}"]
    with pytest.raises(SystemExit):
        run_command([*base, "algo=dpsgd", "topology=ring", "num_workers=4", "steps=20", "--predict"])
    assert re.search(r"^distance, last fifth .*\*$\n\* Not converged: ", capsys.readouterr().out, re.M)
    with pytest.raises(SystemExit):
        run_command([*base, "algo=dpsgd", "topology=ring", "num_workers=4", "steps=5", "lr=9", "--predict"])
    ends = capsys.readouterr().out.splitlines()[-6:]
    assert re.match(r"distance, last fifth of the run +unstable +\d", ends[-1]) and "inf" not in "".join(ends)
    assert ends[-3].split() == ["left", "from", "the", "start", "unstable", "-"]
    sweep = ["-m", *base, "algo=dpsgd,d2", "topology=ring", "num_workers=4", "steps=500"]
    with pytest.raises(SystemExit):
        run_command([*sweep, "--predict"])
    head, _, first, second, *_ = capsys.readouterr().out.partition("predicted / measured")[2].splitlines()
    assert "bias" in head and first.startswith("algo=dpsgd ")
    predicted, measured = map(float, first.rpartition("  ")[2].split(" / "))
    assert measured == pytest.approx(predicted, rel=0.1) and second.split()[:3] == ["algo=d2", "0.97929", "/"]
    for words, reason in (
        (("data=digits", "model=mlp"), "use task=quadratics"),
        (("task=quadratics", "lr=0"), "use a larger learning rate"),
        (("task=quadratics", "lr_per_worker=[lognormal,0.1,1]"), "lr_per_worker has no certificate"),
        (("task=quadratics", "simulate=timeline", "cluster=even", "steps=2"), "which does not train"),
    ):
        with pytest.raises(SystemExit) as exit:
            run_command([*words, "algo=dpsgd", "--predict", f"results_dir={tmp_path}"])
        assert exit.value.code == 2 and reason in capsys.readouterr().err
