"""task=translation: what is drawn, what is learned from it, how translations are written and what they are worth."""

from __future__ import annotations

import csv
import gzip
import itertools
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import decentral
from conftest import Start
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.plugins.translation.data.parallel import (
    BEGIN,
    END,
    PAD,
    Corpus,
    Pairs,
    Parallel,
    SentencePairs,
    Sentences,
    Text,
)
from decentral.plugins.translation.data.synthetic import Rule, SyntheticTranslation
from decentral.plugins.translation.models.transformers import TransformerBase, TransformerSmall
from decentral.plugins.translation.networks import EncoderDecoder
from decentral.plugins.translation.problem import (
    COUNTS,
    Buckets,
    TextBleu,
    WordBleu,
    beam_search,
    bleu,
    greedy,
    smoothed_loss,
)
from decentral.tasks.task import EvaluationSettings
from decentral.training import operations
from table import FREE, TASKS

SMALL = ("task=translation", *TASKS["translation"])


def network(vocabulary: int = 11, seed: int = 0, **settings: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    model = TransformerSmall(**{"dim": 16, "heads": 2, "hidden": 24, "dropout": 0.0} | settings)
    module = model.build(SentencePairs(vocabulary=vocabulary, longest=9)).double()
    for parameter in module.parameters():  # away from the beginning, where everything is as likely as anything else
        parameter.data += 0.3 * torch.randn_like(parameter)
    return module.eval()


def drawn(lengths: list[int], vocabulary: int = 11, seed: int = 1) -> Corpus:
    chosen = random.Random(seed)
    return Corpus.of([[chosen.randrange(3, vocabulary) for _ in range(length)] for length in lengths])


# -- the network -------------------------------------------------------------------------------------------------------


def test_the_base_size_has_the_paper_s_parameters():
    with torch.device("meta"):
        module = TransformerBase().build(SentencePairs(vocabulary=33_708, longest=100))
    assert sum(p.numel() for p in module.parameters()) == 61_362_176


def test_padding_changes_neither_a_loss_nor_its_gradient():
    module, loss = network(), partial(smoothed_loss, smoothing=0.1)
    source, target = drawn([4, 9, 1]), drawn([6, 2, 3], seed=2)

    def losses(numbers: list[int], more: int) -> list[torch.Tensor]:
        rows = [F.pad(torch.from_numpy(c.rows(np.array(numbers))), (0, more)) for c in (source, target)]
        outputs = module(Sentences(rows[0][:, 1:], rows[1][:, :-1]))
        total = loss(outputs, rows[1][:, 1:], reduction="sum")
        return [total.detach(), *torch.autograd.grad(total, list(module.parameters()))]

    together, alone = losses([0, 1, 2], more=4), [losses([i], more=0) for i in range(3)]
    for whole, *parts in zip(together, *alone, strict=True):
        torch.testing.assert_close(whole, sum(parts), rtol=1e-10, atol=1e-10)


def test_the_smoothed_loss_is_the_formula_s():
    logits, targets, s = torch.randn(2, 4, 7, dtype=torch.float64), torch.tensor([[3, 5, 2, 0], [6, 2, 0, 0]]), 0.2
    log_p = logits.log_softmax(-1)
    each = [-(1 - s) * log_p[b, t, y] - s * log_p[b, t].mean() for (b, t), y in np.ndenumerate(targets.numpy()) if y]
    torch.testing.assert_close(smoothed_loss(logits, targets, smoothing=s), sum(each) / len(each))
    assert smoothed_loss(logits, targets, smoothing=s, reduction="none")[0, 3] == 0


def test_writing_token_by_token_gives_the_logits_of_the_whole():
    module = network()
    source, target = torch.from_numpy(drawn([4, 9, 1]).rows(np.arange(3))), drawn([5, 5, 5], seed=3)
    tokens = torch.from_numpy(target.rows(np.arange(3)))
    with torch.no_grad():
        whole = module(Sentences(source[:, 1:], tokens))
        written = module.begin(source[:, 1:])
        for place in range(tokens.shape[1]):
            logits, written = module.write(tokens[:, place], written)
            torch.testing.assert_close(logits, whole[:, place], rtol=1e-10, atol=1e-10)


# -- search ------------------------------------------------------------------------------------------------------------


def test_a_beam_that_holds_everything_finds_the_best_of_all_translations():
    module, most = network(vocabulary=4, seed=3), 4
    source = torch.from_numpy(drawn([2, 2], vocabulary=4, seed=4).rows(np.arange(2)))[:, 1:]

    def log_p(i: int, tokens: tuple[int, ...]) -> float:
        given = torch.tensor([[BEGIN, *tokens[:-1]]])
        each = module(Sentences(source[i : i + 1], given))[0].log_softmax(-1)
        return sum(each[t, y].item() for t, y in enumerate(tokens))

    words = [y for y in range(4) if y != END]
    complete = [(*head, END) for n in range(most) for head in itertools.product(words, repeat=n)]
    everything = [*complete, *itertools.product(words, repeat=most)]
    with torch.no_grad():
        known = [{tokens: log_p(i, tokens) for tokens in everything} for i in range(2)]
        for penalty, length in ((2.0, 1), (7.0, most)):
            found = beam_search(module, source, extra_length=1, width=130, penalty=penalty)
            for of, tokens in zip(known, found, strict=True):
                best = max(of, key=lambda y, of=of, penalty=penalty: of[y] / ((5 + len(y)) / 6) ** penalty)
                assert len(best) == length and tokens == [y for y in best if y != END]
        module = network(vocabulary=4, seed=2)  # it ends no sentence
        source = torch.from_numpy(drawn([1, 2], vocabulary=4, seed=4).rows(np.arange(2)))[:, 1:]
        found = greedy(module, source, extra_length=1)
        alike = beam_search(module, source, extra_length=1, width=1, penalty=2.0)
    assert found == alike and list(map(len, found)) == [3, 4]


# -- BLEU --------------------------------------------------------------------------------------------------------------

TEXTS = [
    (["the cat sat on the mat", "A dog ."], ["The cat sat on a mat today", "a dog barks ."]),
    (["w1 w2 w3 w4 w5", "w1 w1 w1"], ["w1 w2 w3 w4 w5", "w1 w2"]),
    (["x y", "", "z"], ["x y z", "a b", "c"]),
    (["a b c d", "e f"], ["a x c y", "f e"]),
    (["", ""], ["a b", "c"]),
    (["one two three four five six", "seven eight"], ["nine ten eleven", "twelve"]),
]


@pytest.mark.parametrize("kind", ["words", "text"])
@pytest.mark.parametrize("case", range(len(TEXTS)))
def test_bleu_is_sacrebleu_s_and_its_counts_add_up(kind, case):
    sacrebleu = pytest.importorskip("sacrebleu.metrics")
    translations, references = TEXTS[case]
    if kind == "text":
        translations, references = ([f"{line}, 5.3%; Ärger" if line else line for line in each] for each in TEXTS[case])
    ours = WordBleu() if kind == "words" else TextBleu()
    theirs = sacrebleu.BLEU(lowercase=True, force=True, tokenize="none" if kind == "words" else "13a")
    expected = theirs.corpus_score(translations, [references]).score
    parts = [ours.counts([t], [r]) for t, r in zip(translations, references, strict=True)]
    together = ours.counts(translations, references)
    assert np.array(parts).sum(0).tolist() == together and len(together) == COUNTS
    assert bleu(torch.tensor([together, together], dtype=torch.float64)).tolist() == pytest.approx([expected] * 2)
    assert str(theirs.get_signature()).startswith(ours.signature)


# -- batches -----------------------------------------------------------------------------------------------------------


def unequal(N: int = 3000) -> Pairs:
    """Sentences about as long as real ones."""
    generator = np.random.default_rng(5)
    source = np.clip(np.exp(generator.normal(2.6, 0.4, N)), 2, 60)
    target = np.clip(source * generator.normal(1.1, 0.15, N), 2, 60)
    corpora = tuple(Corpus.of([[3] * int(length) for length in side]) for side in (source, target))
    return Pairs(corpora, corpora, Text(str, [], plain=True), "cpu")


def test_in_a_pass_a_worker_draws_each_of_its_pairs_once_in_batches_that_keep_the_caps():
    pairs, indices = unequal(), np.array_split(np.random.default_rng(1).permutation(3000), 4)
    buckets = Buckets(pairs, indices, range(1, 3), 32, 512, seed=7)
    seen = []
    for i in range(2):
        passes = buckets.batches_per_pass[i]
        batches = [buckets.row(i, draw) for draw in range(2 * passes)]
        for part in (batches[:passes], batches[passes:]):
            assert sorted(np.concatenate(part).tolist()) == sorted(indices[1 + i].tolist())
        assert max(map(len, batches)) <= 32
        assert max(len(b) * max(side.lengths[b].max() for side in pairs.train) for b in batches) <= 512
        seen.append([len(b) * int(pairs.train[0].lengths[b].max()) for b in batches])
        assert len(set(seen[-1])) > 20  # batches differ in size
    assert seen[0] != seen[1][: len(seen[0])]
    whole = Buckets(pairs, indices, range(4), 32, 512, seed=7)
    assert whole.steps_per_epoch == buckets.steps_per_epoch == sum(whole.batches_per_pass) / 4
    for draw in (90, 3, 3, 40, 0):  # in any order, in whatever process
        assert [b.tolist() for b in whole.of(1, 2)(draw)] == [b.tolist() for b in buckets(draw)]


def test_the_bundled_sentences_are_reversed_and_unequal():
    data = SyntheticTranslation(num_train=2000, num_test=50)
    pairs, info = data.load("cpu", 0), data.inspect()
    for source, target in (pairs.train, pairs.test):
        for i in range(50):
            s, t = (side.rows(np.array([i]))[0] for side in (source, target))
            assert (s[0], s[-1]) == (t[0], t[-1]) == (BEGIN, END)
            assert s[1:-1].tolist() == t[1:-1].tolist()[::-1]
    lengths = pairs.train[0].lengths - 1
    assert np.median(lengths) == 6 and lengths.max() == 16 and lengths.min() <= 2
    assert pairs.train[0].tokens.max() == info.vocabulary - 1
    copied = SyntheticTranslation(rule=Rule.copy, num_train=2000, num_test=50).load("cpu", 0)
    assert np.array_equal(copied.train[0].tokens, pairs.train[0].tokens)
    assert np.array_equal(copied.train[1].tokens, copied.train[0].tokens)


# -- files -------------------------------------------------------------------------------------------------------------

ENGLISH = "A dog runs .\nTwo men sit at a table .\nA child plays .\nA cat sleeps .\n"
GERMAN = "Ein Hund läuft .\nZwei Männer sitzen an einem Tisch .\nEin Kind spielt .\nEine Katze schläft .\n"


def written(folder, cls=Parallel, **files: str | bytes):
    """A data set of these files; those that are not named are as they should be."""
    contents: dict[str, str | bytes] = {"train.en": ENGLISH, "train.de": GERMAN, "test.en": ENGLISH, "test.de": GERMAN}
    for name, content in (contents | {key.replace("_", "."): value for key, value in files.items()}).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return cls(path=str(folder), vocab_size=300)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def test_files_become_tokens_and_the_same_text_again(cache):
    data = written(cache, test_de=gzip.compress(GERMAN.encode()))
    (cache / "test.de").rename(cache / "test.de.gz")
    info = data.inspect()
    assert (info.num_train, info.num_test, info.vocabulary) == (4, 4, 300)
    data.prepare()
    pairs = data.load("cpu", 0)
    assert list(pairs.text.references) == GERMAN.splitlines()
    for corpus, text in zip(pairs.train, (ENGLISH, GERMAN), strict=True):
        rows = corpus.rows(np.arange(4))
        assert [pairs.text.words(row[(row != PAD)][1:-1].tolist()) for row in rows] == text.splitlines()
        assert rows.max() < 300
    (tokenizer,) = (cache.parent / "cache").glob("parallel-*/tokenizer.json")
    again = Parallel(path=data.path, vocab_size=400, tokenizer=str(tokenizer))
    assert again.inspect().vocabulary == 300
    again.prepare()
    assert np.array_equal(again.load("cpu", 0).train[0].tokens, pairs.train[0].tokens)


LATIN = "Ein Hund läuft .\nZwei\n".encode("latin-1")
WRONG = {
    "unequal lengths": ({"train_de": GERMAN + "Noch einer .\n"}, r"train\.de has 5 lines and .*en has 4, so line 5"),
    "not UTF-8": ({"test_de": LATIN}, r"test\.de, line 1: byte 11 is not UTF-8"),
    "an empty line": ({"train_en": ENGLISH.replace("A child plays .", " ")}, r"train\.en, line 3 is empty"),
    "a very long line": ({"train_en": ENGLISH.replace("A cat", "A cat " * 2000)}, r"train\.en, line 4 has 12,0"),
    "an empty file": ({"train_en": "", "train_de": ""}, r"train\.en is empty"),
    "a broken .gz": ({"test_en": b"", "test_en_gz": b"\x1f\x8bbroken"}, r"test\.en\.gz cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_one_sentence_with_file_and_line(cache, case):
    files, sentence = WRONG[case]
    data = written(cache, **files)
    if "broken" in case:
        (cache / "test.en").unlink()
    with pytest.raises(ConfigError, match=sentence) as error:
        data.prepare()
    assert str(error.value).startswith("data.path") and "\n" not in str(error.value)
    if "line" not in case and "UTF-8" not in case:  # which counting lines does not see
        with pytest.raises(ConfigError, match=sentence):
            data.inspect()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("data=parallel",), r"data=parallel needs data\.path=FOLDER that contains train\.en, train\.de"),
        (("data=multi30k", "data.path=."), r"data\.path=\.: file train\.en .*is missing"),
        (("data=parallel", "data.target=en"), "are the same: use two languages"),
        (("data=digits",), "task=translation needs pairs of sentences, but data=digits has images: use other data"),
        (("model=mlp",), "model=mlp needs images, but this data= has pairs of sentences"),
        (("model.heads=3",), r"model\.dim=128 is not divisible by model\.heads=3"),
        (("task.max_tokens=8",), r"task\.max_tokens=8 is too small"),
    ],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_what_cannot_work_is_refused_in_a_sentence(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        compose(["task=translation", *overrides])


# -- runs --------------------------------------------------------------------------------------------------------------

RUN = (*SMALL, "precision=fp64", "steps=6", "evaluation.every_epochs=0.5", "num_workers=4")


@pytest.mark.parametrize("name", ["allreduce", "adpsgd"])
def test_times_of_gradients_are_recorded_in_one_process_and_are_a_cluster_s(start, name):
    overrides = [*RUN, f"algo={name}", "topology=ring"]
    run = start(*overrides, "record_operations=true", *FREE, directory="recorded")
    found = [one for one in operations.load(run.directory) if one["what"] == "gradient"]
    assert sorted((one["number"], one["worker"]) for one in found) == [(t, i) for t in range(6) for i in range(4)]
    assert all(before["end_s"] <= after["begin_s"] + 1e-6 for before, after in itertools.pairwise(found))
    times = np.zeros((6, 4))
    for one in found:
        times[one["number"], one["worker"]] = one["end_s"] - one["begin_s"]
    assert times.min() > 0
    if name == "allreduce":  # where all wait for the slowest of each step
        trace = ["cluster.compute.distribution=trace", f"cluster.compute.trace={run.directory}"]
        free = [*(one for one in FREE if "mean_s" not in one), *trace]
        assert start(*overrides, *free, directory="traced").facts["simulated_s"] == pytest.approx(times.max(1).sum())


LEARNED = (
    *(*SMALL, "algo=allreduce", "data.words=1", "data.num_test=9", "num_workers=2"),
    *("steps=12", "optim=adam", "lr=0.05"),
)


EXACT = (*LEARNED, "task.beam=2", "task.length_penalty=3", "precision=fp64")


def kept(directory: Path) -> list[dict[str, str]]:
    with open(directory / "translations.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "more",
    [
        (),
        EXACT[len(LEARNED) :],
        ("evaluation.part=test", "algo=dpsgd", "topology=ring"),
    ],
)
def test_what_the_averaged_model_writes_in_the_end_is_kept_and_a_loaded_run_writes_it_again(recorded, more):
    settings = (*LEARNED, *more)
    run = recorded(*settings)
    rows, loaded = kept(run.directory), decentral.load(run.directory)
    data = compose(settings).data.load("cpu", 0)
    asked = EvaluationSettings(part="test" if "evaluation.part=test" in more else "all").numbers(9).tolist()
    sources = [data.text.words(data.test[0].rows(np.array([number]))[0, 1:-1].tolist()) for number in asked]
    assert [row["source"] for row in rows] == sources
    assert [row["reference"] for row in rows] == [data.text.references[number] for number in asked]
    written = [row["translation"] for row in rows]
    assert loaded.translate(sources) == written
    assert more or len(set(written)) > 1
    (score,) = (
        row["value"] for row in run.rows if (row["step"], row["metric"], row["worker"]) == (12, "BLEU", "averaged")
    )
    counts = WordBleu().counts(written, [row["reference"] for row in rows])
    assert bleu(torch.tensor(counts)).item() == pytest.approx(score) and score > 10
    assert loaded.translate([]) == [] and loaded.translate(["w3 w3"], loaded.models[1]) == loaded.translate(["w3 w3"])


def test_several_processes_and_a_break_change_no_translation_and_no_metric(recorded, start):
    whole = recorded(*EXACT)
    few = start(*EXACT, "task.translations=4", "evaluation.batch_size=3", directory="few", processes=2)
    rows = kept(few.directory)
    assert len(rows) == 4 and all(row in kept(whole.directory) for row in rows)
    for ours, theirs in zip(few.rows, whole.rows, strict=True):
        assert ours == theirs | {"value": pytest.approx(theirs["value"], rel=1e-10, abs=1e-12)}
    assert not (
        start(*EXACT, "task.translations=0", "steps=1", directory="none").directory / "translations.csv"
    ).exists()
    broken = start(*EXACT, "checkpoint_every_s=0", interrupt_at=6, directory="broken")
    assert broken.status == "interrupted" and not (broken.directory / "translations.csv").exists()
    assert kept(start(*EXACT, "checkpoint_every_s=0", directory="broken").directory) == kept(whole.directory)
    assert run_id(compose([*EXACT, "task.translations=4"])) == run_id(compose(EXACT))


def test_texts_are_translated_as_they_are_and_not_without_their_data(start, cache):
    pytest.importorskip("sacrebleu")
    written(cache)
    texts = [word for word in LEARNED if not word.startswith("data")]
    run = start(*texts, "data=parallel", f"data.path={cache}", "data.vocab_size=300", "data.longest=20", "task.beam=2")
    loaded, rows = decentral.load(run.directory), kept(run.directory)
    assert [row["reference"] for row in rows] == GERMAN.splitlines()
    assert all(line.startswith(row["source"]) for line, row in zip(ENGLISH.splitlines(), rows, strict=True))
    assert rows[0]["source"] == ENGLISH.splitlines()[0]  # others are cut
    assert loaded.translate(ENGLISH.splitlines()[:1]) == [rows[0]["translation"]]
    assert len(loaded.translate(["Ein 犬 läuft"])) == 1
    with pytest.raises(ConfigError, match=r"sentences\[0\] has .* tokens: give sentences of 1 to 20 tokens"):
        loaded.translate([ENGLISH])
    cache.rename(cache.with_name("elsewhere"))
    with pytest.raises(ConfigError, match=r"data\.path=.* is not a folder"):
        loaded.translate(["A dog"])


def test_sentences_that_cannot_be_translated_are_refused(recorded, start):
    loaded = decentral.load(recorded(*LEARNED).directory)
    for sentences, message in {
        ("w3", "w4 w3"): "'w4' is not a word of data=synthetic_translation: use w3 to w3",
        ("w3", " "): r"sentences\[1\] has 0 tokens: give sentences of 1 to 8",
        ("w3 " * 9,): r"sentences\[0\] has 9 tokens: give sentences of 1 to 8",
        "w3 w3": "is not a list of sentences",
        (3,): "is not a list of sentences",
    }.items():
        with pytest.raises(ConfigError, match=message):
            loaded.translate(sentences)
    other = decentral.load(start("task=quadratics", "steps=1", directory="other").directory)
    with pytest.raises(ConfigError, match="is a run of task=quadratics: translate needs a run of task=translation"):
        other.translate(["w3"])
    bare = decentral.load(start(*LEARNED, "save=none", "steps=1", directory="bare").directory)
    with pytest.raises(ConfigError, match="has no models: it is done, with save=none; use a run that is done"):
        bare.translate(["w3"])


@pytest.mark.slow
def test_sentences_are_reversed_after_some_epochs(start):
    words = ["task=translation", "num_workers=2", "batch_size=32", "steps=400", "lr=0.005", "evaluation.every_epochs=9"]
    data = ["data.words=8", "data.longest=5", "data.median_length=4", "data.num_train=4000", "data.num_test=50"]
    model = ["model.dim=64", "model.hidden=64", "model.layers=1"]
    run = start(*words, *data, *model)
    first = next(row["value"] for row in run.rows if (row["metric"], row["worker"]) == ("BLEU", "averaged"))
    assert first < 5 and run.last("BLEU", "averaged") > 60 and run.last("BLEU", "worst") > 60


def test_a_compressed_method_trains(start):
    assert start(*SMALL, "algo=allreduce", "compress=topk", "steps=2").status == "done"


@pytest.mark.slow
def test_processes_agree_on_states_that_appear_in_the_first_pass(start: Start) -> None:
    """A translation model keeps its positions from then on; workers of one process have not trained, those of others
    have."""
    words = [*SMALL, "num_workers=4", "steps=6", "batch_size=2", "algo=dpsgd", "topology=complete", "lr=0.01"]
    words += ["availability=fixed", "availability.absences=[[2,0,3],[3,0,3]]", "trace=true", "save=none"]
    words += ["evaluation.initial=false", "execution=loop", "network.timeout_s=25"]
    alone, several = (start(*words, processes=k, directory=f"by {k}").iterates for k in (1, 2))
    np.testing.assert_allclose(several, alone, rtol=1e-5, atol=1e-6)
