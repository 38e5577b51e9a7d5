"""What makes a run with a model from Python another one: every edit, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edits

OF_ALL = """
import json, os, sys, types, warnings
import torch, torch.nn.functional as F
from torch import nn
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import edits
from decentral.script.fingerprint import fingerprint

PATCHED = [(nn.Linear, "forward"), (nn.Dropout, "forward"), (F, "linear")]
BEFORE = [getattr(*one) for one in PATCHED]

def found(name, source):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
    result = fingerprint(module.made, "Net")
    for (owner, name), value in zip(PATCHED, BEFORE):
        setattr(owner, name, value)
    vars(nn.Module).get("extra") and delattr(nn.Module, "extra")
    nn.modules.module._global_forward_hooks.clear()
    os.environ.pop("DECENTRAL_EDIT", None)
    return result

base = edits.HEAD + edits.HELPER
pairs = {name: [found(sys.argv[2], one) for one in both] for name, both in edits.pairs().items()}
others = {name: found(sys.argv[2], base + more) for name, more in (edits.UNKNOWN | edits.HARMLESS | {"": ""}).items()}
print(json.dumps([pairs, others]))
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes found, with other orders of sets and other names of modules."""
    words = [sys.executable, "-c", OF_ALL, str(Path(__file__).parent)]
    running = [
        subprocess.Popen(
            [*words, name],
            env=os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path_factory.mktemp(name),
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, seed in (("one", "1"), ("other", "2"))
    ]
    return [json.loads(process.communicate()[0]) for process in running]


@pytest.mark.parametrize("name", edits.pairs())
def test_an_edit_makes_another_digest_and_another_process_does_not(processes: list[Any], name: str) -> None:
    (before, after), in_another = (pairs[name] for pairs, _ in processes)
    assert before[1] == after[1] == ""
    assert before[0] != after[0]
    assert [before, after] == in_another


@pytest.mark.parametrize("name", edits.UNKNOWN)
def test_what_cannot_be_compared_is_new_each_time_and_named(processes: list[Any], name: str) -> None:
    (one, why), (other, _) = (others[name] for _, others in processes)
    assert one != other and re.match(r"Net\b.* cannot be compared by value", why)


@pytest.mark.parametrize("name", edits.HARMLESS)
def test_what_changes_nothing_does_not_count(processes: list[Any], name: str) -> None:
    (_, others), _ = processes
    assert others[name] == others[""]


def test_no_code_of_an_objects_class_is_called() -> None:
    from decentral.script.fingerprint import fingerprint

    def called(*_: Any) -> None:
        raise AssertionError

    special = (
        "__repr__",
        "__eq__",
        "__hash__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__getattr__",
        "__iter__",
    )
    more = ("__len__", "__bool__", "__str__", "__getattribute__", "__class__", "items", "keys", "__instancecheck__")
    for base in (object, dict, list, str, float):
        names = dict.fromkeys((*special, *more), property(called))
        held = type("Held", (base,), names | {"__init__": lambda self: None})()
        assert fingerprint([held], "held") == fingerprint([held], "held") != fingerprint([base()], "held")


SCRIPT = """
import torch, decentral
from torch import nn
from torch.utils.data import TensorDataset
from helpers import scaled, Base

FACTOR = 1.0

def doubled(x):
    return 2 * x

class Net(Base):
    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.config = nn.Linear(6, 3), {"width": width}

    def forward(self, x):
        return scaled(doubled(self.layers(x))) * FACTOR

def made():
    return Net()

def train(net, first=0, **settings):
    data = torch.linspace(0, 1, 24 * 6).reshape(24, 6)
    train, test = TensorDataset(data, (torch.arange(24) + first) % 3), TensorDataset(data[:6], torch.arange(6) % 3)
    settings = {"num_workers": 2, "batch_size": 4, "steps": 2, "results_dir": "RESULTS", "progress": False} | settings
    found = decentral.train(net, train, test, algo="dpsgd", topology="ring", **settings)
    return [found.directory.name, found.reused]
"""
HELPERS = """
from torch import nn
SHIFT = 0.5
def scaled(x):
    return 3 * x + SHIFT
class Base(nn.Module):
    pass
"""
CELLS = {
    "first": "net = Net()",
    "again": "net = Net()",
    "the class again": "class Net(Base):" + SCRIPT.split("class Net(Base):")[1].split("def made")[0] + "net = Net()",
    "other forward": "class Net(Net):\n    def forward(self, x):\n        return self.layers(x)\nnet = Net()",
    "helper": "net = Net()\ndef doubled(x):\n    return 4 * x",
    "global": "FACTOR = 2.0\nnet = Net()",
    "imported": "import helpers\nhelpers.SHIFT = 0.25\nnet = Net()",
    "attribute": "net = Net()\nnet.config['width'] = 5",
    "hook": "net = Net()\nhandle = net.register_forward_hook(lambda module, given, out: 2 * out)",
    "class to be called": "net = Net",
    "function": "net = made",
    "lambda": "net = lambda: Net(5)",
    "file": """
class Held(Net):
    def __deepcopy__(self, memo):
        return Net()
net = Held()
net.file = open(os.devnull)""",
}
"""What is done before the model is trained, each after SCRIPT; only the two after the first make no new run."""


def check(found: list[tuple[str, bool]]) -> None:
    first, *repeated = found[:3]
    assert not first[1] and repeated == [(first[0], True)] * 2
    assert not any(reused for _, reused in found[3:])
    assert len({directory for directory, _ in found}) == len(found) - 2


@pytest.mark.slow
def test_an_edited_script_is_another_run_and_the_same_one_elsewhere_is_not(tmp_path: Path) -> None:
    """The last are another file of helpers, other labels, and a file that the function reads."""
    script = SCRIPT.replace("RESULTS", str(tmp_path / "results"))
    reading = script.replace("return Net()", f"return Net(len(open({str(tmp_path / 'width')!r}).read()))")
    runs = [(script, HELPERS, f"import os\n{cell}\nfound = train(net)") for cell in CELLS.values()]
    runs += [
        (script, HELPERS.replace("3 * x", "x"), "found = train(Net())"),
        (script, HELPERS.replace("    pass", "    bias = 1"), "found = train(Net())"),
        (script, HELPERS, "found = train(Net(), first=1)"),
        (reading, HELPERS, f"open({str(tmp_path / 'width')!r}, 'w').write('a')\nfound = train(made)"),
        (reading, HELPERS, f"open({str(tmp_path / 'width')!r}, 'w').write('ab')\nfound = train(made)"),
    ]
    for number, (text, helpers, more) in enumerate(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "helpers.py").write_text(helpers)
        (folder / "script.py").write_text(text + more)
    driver = """
import json, runpy, sys
for number in range(int(sys.argv[1])):
    sys.path[0] = str(number)
    sys.modules.pop("helpers", None)
    print(json.dumps(runpy.run_path(f"{number}/script.py", run_name="__main__")["found"]))
"""
    (tmp_path / "driver.py").write_text(driver)
    done = subprocess.run(
        [sys.executable, "driver.py", str(len(runs))], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    check([tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")])
    assert done.stdout.count("is already finished: reused from") == 2
    assert "Held.file of type _io.TextIOWrapper cannot be compared by value, so this run is new" in done.stderr


@pytest.mark.slow
def test_an_edited_cell_of_a_notebook_is_another_run_and_the_same_one_again_is_not(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    (tmp_path / "helpers.py").write_text(HELPERS)
    script = SCRIPT.replace("RESULTS", str(tmp_path / "results"))
    texts = [script + "\nimport os", *(f"{cell}\nprint(*train(net))" for cell in CELLS.values())]
    texts.append("print(*train(Net(), first=1))")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = ["".join(one.text for one in cell.outputs if one.get("name") == "stdout") for cell in notebook.cells[1:]]
    lines = [text.splitlines()[-1].split() for text in shown]
    check([(name, reused == "True") for name, reused in lines])
