"""Components of one's own: in a folder, chosen, helped with, refused, run, resumed and swept like ours."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import decentral
from conftest import exit_status
from decentral.cli.run import main
from decentral.cli.study import main as study
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.config.parsing import conf_directory, dump, load
from decentral.errors import ConfigError
from decentral.measurements.training_run import TrainingRun
from decentral.registry import components, sources
from decentral.store import RunStore

pytestmark = pytest.mark.usefixtures("undrawn")

QUICK = ("topology=ring", "task=quadratics", "num_workers=4", "steps=6", "device=cpu", "progress=false")
LAZY = '''"""Gossip of one's own."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.algorithms.states import OnlyModels


@dataclass
class Lazy(OnlyModels):
    """Gossip that keeps half of its own model.

    eta   how much of it goes to the mean of the neighbors
    """

    name: str = "lazy"
    eta: float = 0.5

    def step(self, s, oracle, net, t):
        """One gradient, one round."""
        y, opt = self.local.adapt(s.x, oracle(s.x), s.opt, t)
        return self.State(y.clone().lerp_(net.mix(y, t), self.eta), opt)
'''


def write(folder: Path, text: str = LAZY, name: str = "algorithms/lazy.py") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return str(folder)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return write(tmp_path / "mine")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """(exit status, stdout, stderr)"""
    return exit_status(main, *arguments), *capsys.readouterr()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = command(capsys, *arguments)
    assert (code, out) == (2, "") and len(err.strip().splitlines()) == 1
    return err


def afresh(*arguments: str, module: str = "decentral", **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which knows nothing yet."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


# what can be chosen


def test_it_is_chosen_without_a_yaml_file_and_helped_with(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    assert compose(["algo=lazy", "algo.eta=0.25", *QUICK], mine).algo.eta == 0.25
    _, out, _ = command(capsys, "--config-dir", mine, "--help", "algo")
    assert "  lazy               Gossip that keeps half of its own model." in out.splitlines()
    _, out, _ = command(capsys, "--config-dir", mine, "--help", "algo=lazy")
    assert "(mine/algorithms/lazy.py)" in out and "how much of it goes" in out and "algo.eta=0.5" in out
    _, out, _ = command(capsys, "--config-dir", mine, "--help")
    assert "lazy" in out.split()
    _, out, _ = command(capsys, "--config-dir", mine, "--cfg", "job", "algo=lazy", *QUICK)
    assert "name: lazy" in out and "eta: 0.5" in out
    assert "  lazy  " not in command(capsys, "--help", "algo")[1]


def test_a_class_of_a_module_is_taken_for_every_component(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []
    for number, text in enumerate((LAZY, LAZY.replace("lerp_", "lerp_  "))):
        write(tmp_path, text, f"lazy_here{number}.py")
        config = compose([f"algo=lazy_here{number}:Lazy", "algo.eta=0.25", *QUICK])
        assert config.algo.eta == 0.25 and config.algo.name == f"lazy_here{number}:Lazy"
        assert load(dump(config)) == config == pickle.loads(pickle.dumps(config))
        ids.append(run_id(replace(config, algo=replace(config.algo, name="lazy_here:Lazy"))))
    assert ids[0] != ids[1]
    assert command(capsys, "algo=lazy_here0:Lazy", *QUICK)[0] == 0
    out = command(capsys, "--help", "algo=lazy_here0:Lazy")[1]
    assert "(lazy_here0.py)" in out and "algo.eta=0.5" in out
    assert "has no setting 'etta'. Did you mean 'algo.eta'" in refusal(capsys, "algo=lazy_here0:Lazy", "algo.etta=1")
    kinds = "from decentral.topology.static import Ring\nfrom decentral.compression.sparse import TopK\n"
    (tmp_path / "kinds_here.py").write_text(
        f"from dataclasses import dataclass\n{kinds}"
        "@dataclass\nclass Mine(Ring):\n    name: str = 'mine'\n@dataclass\nclass Top(TopK):\n    name: str = 'top'\n"
    )
    config = compose(["algo=choco", "topology=kinds_here:Mine", "compress=kinds_here:Top", "compress.keep=0.5"])
    assert len(config.rounds().edges()) == 2 * 16 and config.compress.keep == 0.5


@pytest.mark.slow
def test_a_run_with_a_class_of_a_module_resumes_and_loads_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_module.py").write_text(LAZY)
    words = ["algo=lazy_module:Lazy", "data=digits", "model=mlp", "topology=ring", "num_workers=4", "steps=12"]
    words += ["batch_size=8", "checkpoint_every_s=0", "restarts=1", "processes=2", "run_dir=run", "progress=false"]
    fault = '[{"rank": 0, "step": 7, "kind": "kill"}]'
    done = afresh(*words, module="decentral.cli.run", DECENTRAL_FAULTS=fault)
    assert done.returncode == 0 and 'decentral.load("run")' in done.stdout, done.stderr
    assert "restarting from step 7" in done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    result = decentral.load("run")
    assert (result.settings["algo"], len(result.models)) == ("lazy_module:Lazy", 4)


# what cannot be a component


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ndef f(:\n", "mine/algorithms/lazy.py, line 2: SyntaxError: invalid syntax."),
        ("x = 1\ny = x / 0\n", "mine/algorithms/lazy.py, line 2: ZeroDivisionError: division by zero."),
        ("import nonesuch\n", "mine/algorithms/lazy.py, line 1: ModuleNotFoundError: No module named 'nonesuch'."),
        (LAZY.replace("@dataclass\n", "\n"), "mine/algorithms/lazy.py: Lazy is not a dataclass"),
        (LAZY.replace("def step", "def stop"), "mine/algorithms/lazy.py: Lazy is not a complete decentral.algorithms"),
        (LAZY.replace("eta: float = 0.5", "eta: complex = 1j"), "lazy.py: a field of Lazy has an unsupported type"),
        (LAZY.replace('"lazy"', '"dpsgd"'), "the name 'dpsgd' is already used by "),
    ],
)  # fmt: skip
def test_a_file_that_is_no_component_is_refused_in_a_sentence_that_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    said = refusal(capsys, "--config-dir", write(tmp_path / "mine", text), "algo=lazy", *QUICK)
    assert words in said and "mine/algorithms/lazy.py" in said


@pytest.mark.parametrize("processes", [1, 2])
def test_an_exception_in_a_step_names_the_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, processes: int
) -> None:
    text = LAZY.replace("        y, opt", '        assert t < 3, "too late"\n        y, opt')
    folder, where = write(tmp_path / "mine", text), "mine/algorithms/lazy.py, line 22: AssertionError: too late"
    code, _, err = command(capsys, "--config-dir", folder, "algo=lazy", *QUICK, f"processes={processes}", "run_dir=run")
    assert code == 1 and f"{where} (in step 3)" in err
    assert where in (RunStore.peek(Path("run")) or {})["reason"]


# identity


def test_its_source_is_part_of_the_id_and_its_place_is_not(tmp_path: Path) -> None:
    texts = {"a": LAZY, "b": LAZY, "c": LAZY.replace("lerp_", "lerp_  ")}
    ids = [run_id(compose(["algo=lazy", *QUICK], write(tmp_path / name, text))) for name, text in texts.items()]
    assert ids[0] == ids[1] != ids[2]


IMPORTS = {
    "beside": ("import helpers_", "here/helpers_.py"),
    "in a function": ("def f():\n    from helpers_ import a", "here/helpers_.py"),
    "by name": ("import importlib\nimportlib.import_module('helpers_')", "here/helpers_.py"),
    "of a package": ("import tools_.deep.one", "here/tools_/deep/one.py"),
    "of another": ("from tools_.two import a", "here/tools_/one.py"),
    "what that imports": ("import elsewhere_", "there/beside_it_.py"),
    "where a link leads": ("import linked_", "there/target_.py"),
}
"""What a module imports, and a file that is another one then."""


@pytest.mark.parametrize("name", IMPORTS)
def test_every_module_of_ones_own_that_is_imported_is_part_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, edited = IMPORTS[name]
    here, there = tmp_path / "here", tmp_path / "there"
    for path in (here, there):
        monkeypatch.syspath_prepend(str(path))
    files = {
        **dict.fromkeys(("here/helpers_.py", "here/tools_/__init__.py", "here/tools_/deep/__init__.py"), "a = 1\n"),
        **dict.fromkeys(("here/tools_/deep/one.py", "here/tools_/one.py", "there/target_.py"), "a = 1\n"),
        **{"here/tools_/two.py": "from .one import a\n", "there/elsewhere_.py": "import beside_it_\n"},
        **{"there/beside_it_.py": "import torch\n", "here/unused_.py": "a = 1\n"},
        "here/mine_.py": f"import torch\n{text}\n",
    }
    for path, content in files.items():
        write(tmp_path, content, path)
    (here / "linked_.py").symlink_to(there / "target_.py")

    def digest() -> str:
        for module in [one for one in sys.modules if re.match("[a-z].*_$", one.partition(".")[0])]:
            del sys.modules[module]
        importlib.invalidate_caches()
        importlib.import_module("mine_")
        return sources.freeze("mine_")

    before = digest()
    write(tmp_path, "a = 2\n", "here/unused_.py")
    assert digest() == before
    write(tmp_path, files[edited] + "b = 3\n", edited)
    assert digest() != before
    del sys.modules["mine_"]


def test_the_source_is_written_down_and_another_one_is_noticed(mine: str) -> None:
    config = compose(["algo=lazy", *QUICK], mine)
    text = dump(config)
    assert load(text) == config
    written = yaml.safe_load(text)["own"]["algo"]
    assert written["file"].endswith("mine/algorithms/lazy.py")
    with pytest.raises(ConfigError, match="has changed since this was written"):
        load(text.replace(written["sha256"], "0" * 16))


def test_a_file_that_changes_while_a_run_starts_is_noticed(mine: str) -> None:
    config = compose(["algo=lazy", *QUICK], mine)
    job = pickle.dumps(TrainingRun(replace(config, run_dir="run")))
    write(Path(mine), LAZY + "\n")
    words = "import pickle, sys; pickle.load(sys.stdin.buffer).carry_out()"
    done = subprocess.run([sys.executable, "-c", words], input=job, capture_output=True, env=os.environ, timeout=240)
    assert done.returncode and b"has changed since the start" in done.stderr


# processes, sweeps, studies


CLAIM = '''"""A claim of one's own."""

from dataclasses import dataclass

from decentral.report.claims import MET, Claim, Finding


@dataclass
class Always(Claim):
    """Is met."""

    name: str = "always"

    def check(self, cells, larger_is_better):
        """It is."""
        return Finding(MET, why="says one's own")
'''

STUDY = """\
# Ours against one's own.
kind: comparison
title: Gossip, lazy or not
paper: mine
item: Table 1
base: [task=quadratics, topology=ring, num_workers=4, steps=4]
rows:
  - {method: lazy, base: [algo=lazy]}
  - {method: D-PSGD, base: [algo=dpsgd]}
seeds: [0]
measure: {split: objective, metric: suboptimality, worker: worst}
scales:
  small: {}
report:
  table: {rows: [method], format: scientific}
  claims: [{says: it works, kind: always}]
"""


@pytest.mark.slow
def test_a_study_compares_it_with_ours_and_its_own_claim_is_judged(
    capsys: pytest.CaptureFixture[str], mine: str
) -> None:
    write(Path(mine), STUDY, "study/lazy_or_not.yaml")
    write(Path(mine), CLAIM, "claims/always.py")
    assert exit_status(study, "lazy_or_not", "scale=small", "--config-dir", mine, "progress=false") == 0, (
        capsys.readouterr().err
    )
    folder = Path("results/own/mine/lazy_or_not/small")
    assert "lazy" in (folder / "table.md").read_text()
    assert "says one's own" in (folder / "verdicts.csv").read_text()
    done = afresh("lazy_or_not", "--config-dir", mine, module="decentral.cli.report")
    assert done.returncode == 0 and "Made:     1 report" in done.stdout, done.stderr


def test_what_is_ones_own_is_forgotten_by_the_next_command(capsys: pytest.CaptureFixture[str], mine: str) -> None:
    assert command(capsys, "--config-dir", mine, "algo=lazy", *QUICK)[0] == 0
    assert "lazy" in components("algorithms")
    assert "algo=lazy does not exist" in refusal(capsys, "algo=lazy", *QUICK)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "algo/dpsgd.yaml",
            "defaults:\n  - schema/dpsgd@_here_\n",
            "algo/dpsgd.yaml has the name of a built-in choice",
        ),
        ("algo/lazier.yaml", "eta: 0.1\n", "algo: its YAML file does not name its component"),
        ("algo/lazier.yaml", "defaults:\n  - lazier\n", "a YAML file lists itself in its defaults"),
        ("algorithms/again.py", LAZY, "mine/algorithms/lazy.py"),
        ("algorithms/quits.py", "import sys\nsys.exit(0)\n", "quits.py, line 2"),
        ("algorithms/nothing.py", "", "nothing.py defines no class with name: str = 'nothing'"),
    ],
)
def test_a_file_that_cannot_be_what_it_says_is_refused(
    capsys: pytest.CaptureFixture[str], mine: str, name: str, text: str, said: str
) -> None:
    write(Path(mine), text, name)
    assert said in refusal(capsys, "--config-dir", mine, f"algo={Path(name).stem}", *QUICK)


@pytest.mark.usefixtures("inline")
def test_the_conf_of_a_clone_is_a_folder_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few = shutil.ignore_patterns("relaysum_*", "bluefog_*", "wagma_*")
    shutil.copytree(conf_directory(), conf := tmp_path / "clone" / "conf", ignore=few)
    saved = ["-m", "algo=dpsgd,allreduce", *QUICK, "--config-dir", str(conf), "--save-study", "saved"]
    assert command(capsys, *saved)[0] == 0
    for words in (["saved"], []):
        exit = exit_status(study, *words, "--config-dir", str(conf))
        out = capsys.readouterr().out
        assert exit == 0 and "bjective suboptimality" in out, out
    (conf / "cluster" / "even.yaml").write_text("defaults: [machines]\n")
    assert "even.yaml has the name of a built-in choice" in refusal(capsys, "--config-dir", str(conf), *QUICK)


def test_former_flags_of_a_class_become_features_or_name_what_replaces_them() -> None:
    from decentral.algorithms.features import Feature
    from decentral.algorithms.states import OnlyModels

    words = r"write supports = OnlyModels.supports - \{Feature.message_loss\}"
    with pytest.warns(FutureWarning, match=words):
        cls = type("Mine", (OnlyModels,), {"survives_loss": False})
    with pytest.warns(FutureWarning, match="has_local_steps is deprecated"):
        cls = type("Mine", (cls,), {"has_local_steps": True})
    with pytest.warns(FutureWarning, match="needs_samples is deprecated"):
        cls = type("Mine", (cls,), {"needs_samples": True})
    assert cls.supports == (OnlyModels.supports | {Feature.local_steps}) - {Feature.message_loss, Feature.training}
    with pytest.raises(ConfigError, match=r"Mine.usual_topology no longer exists: define usual = \{'topology'"):
        type("Mine", (OnlyModels,), {"usual_topology": "ring"})
