"""Entities from a frozen encoder: its hidden states on disk, and a BiLSTM that reads some of them."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from eval.encoding import Encoder
from eval.features import FeatureTags, LstmTagger, Sentences, hidden_states
from eval.finetune import Hyperparameters, Settings, learn, predict
from eval.kinds import Frozen
from eval.readers import conll
from eval.readers.examples import TaggedSentence
from preprocessing.tokenization import load_tokenizer
from tests.conftest import ROOT
from tests.eval.conftest import CONFIG, random_state
from tests.eval.small_data import write_conll
from trainer.files import incomplete
from trainer.hugging_face import Export
from trainer.model import BertForPreTraining, BertModel
from trainer.packing import PackedTokens

CPU = torch.device("cpu")
EXPORT = Export(CONFIG, random_state(), [])
LAST = FeatureTags(-1, -1, units=16, dropout=0.0)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    return conll.read(write_conll(tmp_path_factory.mktemp("data")), "train")


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    return Frozen(EXPORT, Settings(max_tokens=64), CPU, tmp_path / "states", "train")


@pytest.fixture
def encoder(shards: Path) -> Encoder:
    return Encoder(load_tokenizer(shards / "tokenizer"), 32)


def test_states_are_those_of_the_encoder(sentences, frozen, encoder) -> None:
    samples = LAST.encode(sentences, encoder, training=True)
    states = hidden_states(sentences, samples, frozen)
    assert states.dtype == np.float16
    assert states.shape == (sum(len(s.words) for s in sentences), 3, CONFIG.hidden_size)
    model = BertForPreTraining(CONFIG, seed=None).eval()
    model.load_state_dict(EXPORT.state)
    first_words = np.cumsum([0, *(len(s.words) for s in sentences)])
    for passage in samples:
        with torch.no_grad():
            whole = model.bert.hidden_states(PackedTokens.from_sequences([passage.sequences[0].ids.tolist()]))
        for word in passage.words:
            expected = torch.stack([layer[word.place] for layer in whole]).numpy()
            found = states[first_words[word.sentence] + word.word]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)  # float16


def test_states_in_bfloat16(sentences, frozen, encoder) -> None:
    samples = LAST.encode(sentences, encoder, training=True)
    rounding = dataclasses.replace(frozen, settings=Settings(precision="bf16"), name="rounded")
    exact, rounded = (hidden_states(sentences, samples, of) for of in (frozen, rounding))
    assert not np.array_equal(rounded, exact)
    np.testing.assert_allclose(rounded, exact, rtol=0, atol=0.5)


def test_a_word_without_a_piece_has_zeros(frozen, encoder) -> None:
    sentence = TaggedSentence("0-0", ("word1", "\x01"), ("I-PER", "O"), 0)
    samples = LAST.encode([sentence], encoder, training=True)
    first, second = hidden_states([sentence], samples, frozen)
    assert first.any()
    assert not second.any()


def test_a_part_of_a_sentence_in_which_no_word_begins(sentences, frozen, encoder) -> None:
    """A word of more pieces than a passage has room for goes on in the next one."""
    samples = LAST.encode(sentences, encoder, training=True)
    samples[1] = dataclasses.replace(samples[1], words=())
    frozen = dataclasses.replace(frozen, settings=Settings(max_tokens=samples[1].size))  # a batch by itself
    assert np.isfinite(hidden_states(sentences, samples, frozen)).all()


def test_states_are_computed_once(sentences, frozen, encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = LAST.encode(sentences, encoder, training=True)
    first = hidden_states(sentences, samples, frozen)
    monkeypatch.setattr("eval.features._compute", None)
    assert np.array_equal(hidden_states(sentences, samples, frozen), first)
    assert sorted(path.suffix for path in frozen.folder.iterdir()) == [".lock", ".npy"]


def test_states_whose_computing_was_cut_short_are_computed_again(
    sentences, frozen, encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = LAST.encode(sentences, encoder, training=True)
    whole, calls = BertModel.hidden_states, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(BertModel, "hidden_states", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hidden_states(sentences, samples, frozen)
    assert hidden_states(sentences, samples, frozen).any(axis=(1, 2)).all()


def test_states_are_not_written_through_a_link(sentences, frozen, encoder, tmp_path: Path) -> None:
    samples, other = LAST.encode(sentences, encoder, training=True), tmp_path / "other"
    other.write_text("theirs")
    frozen.folder.mkdir()
    incomplete(frozen.folder / f"{frozen.name}.npy").symlink_to(other)
    assert hidden_states(sentences, samples, frozen).any()
    assert other.read_text() == "theirs"


FILL = """
import subprocess, sys
from pathlib import Path
from eval.encoding import Encoder
from eval.readers import conll
from eval.readers.examples import TaggedSentence
from preprocessing.tokenization import load_tokenizer
from tests.eval.test_features import CPU, EXPORT, LAST, Frozen, Settings, hidden_states
data, tokenizer, disk = map(Path, sys.argv[1:])
disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
sentences = conll.read(data, "train")
samples = LAST.encode(sentences, Encoder(load_tokenizer(tokenizer), 32), training=True)
try:
    hidden_states(sentences, samples, Frozen(EXPORT, Settings(max_tokens=64), CPU, disk / "states", "train"))
except OSError as error:
    print(error.strerror, [file.name for file in (disk / "states").iterdir()])
"""


def test_a_disk_that_fills_while_states_are_kept_is_an_error_and_has_room_again(tmp_path: Path, shards: Path) -> None:
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own_mounts, "true"]).returncode:
        pytest.skip("no file system of its own can be mounted here")
    data = write_conll(tmp_path / "data", documents=40)
    program = [*own_mounts, sys.executable, "-c", FILL, data, shards / "tokenizer", tmp_path / "disk"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "No space left on device ['train.lock']\n"), done.stderr


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        (FeatureTags(0, 0), [0]),
        (FeatureTags(-2, -2), [1]),
        (FeatureTags(-1, -1), [2]),
        (FeatureTags(-2, -1), [1, 2]),
        (FeatureTags(1, -1, "weighted"), [1, 2]),
    ],
)
def test_which_layers_are_read(sentences, frozen, encoder, kind: FeatureTags, layers: list[int]) -> None:
    samples = kind.encode(sentences, encoder, training=True)
    states = hidden_states(sentences, samples, frozen)
    found = kind.embed(sentences, samples, frozen)
    assert np.array_equal(np.concatenate([s.states for s in found]), states[:, layers])
    assert [len(s.targets) for s in found] == [len(s.words) for s in sentences]
    model = dataclasses.replace(kind, units=4).build(EXPORT, 0)
    assert model(kind.collate(found[:3])).shape == (sum(s.size for s in found[:3]), 9)


def test_the_weighted_sum() -> None:
    tagger = LstmTagger(layers=3, width=5, combine="weighted", units=4, tags=2, dropout=0.0)
    states = torch.randn(7, 3, 5)
    torch.testing.assert_close(tagger._combine(states), states.mean(dim=1))  # equal weights at the start
    with torch.no_grad():
        tagger.mixture.copy_(torch.tensor([0.0, torch.inf, 0.0]).clamp(max=50))
        tagger.scale.fill_(2.0)
    torch.testing.assert_close(tagger._combine(states), 2 * states[:, 1])


def test_sentences_do_not_see_each_other() -> None:
    tagger = LstmTagger(layers=1, width=6, combine="concatenated", units=4, tags=3, dropout=0.5).eval()
    states = torch.randn(9, 1, 6)
    targets = torch.zeros(9, dtype=torch.int64)
    batch = Sentences(states, targets, [2, 4, 3])
    together = tagger(batch)
    losses = tagger.losses(together, batch)  # of each word
    begin = 0
    for length in (2, 4, 3):
        of_one = Sentences(states[begin : begin + length], targets[:length], [length])
        alone = tagger(of_one)
        torch.testing.assert_close(together[begin : begin + length], alone)
        torch.testing.assert_close(losses[begin : begin + length], tagger.losses(alone, of_one))
        begin += length


def test_the_size_of_the_papers() -> None:
    model = FeatureTags(-2, -1).build(EXPORT, 0)
    assert (model.lstm.num_layers, model.lstm.hidden_size, model.lstm.bidirectional) == (2, 768, True)
    assert model.lstm.input_size == 2 * CONFIG.hidden_size
    dropped: list[int] = []
    model.dropout.register_forward_hook(lambda _, inputs, __: dropped.append(inputs[0].shape[1]))
    model(Sentences(torch.zeros(3, 2, CONFIG.hidden_size), torch.zeros(3, dtype=torch.int64), [3]))
    assert dropped == [2 * CONFIG.hidden_size, 2 * 768]  # what goes in and what comes out
    assert (model.dropout.p, model.lstm.dropout) == (0.5, 0.5)


def test_a_model_with_too_few_layers() -> None:
    FeatureTags(-3, -1).check(CONFIG)
    for kind in (FeatureTags(-4, -1), FeatureTags(3, 3)):
        with pytest.raises(ValueError, match=r"^4 states of a token are read, and a model of 2 layers has 3; leave"):
            kind.check(CONFIG)


def test_the_seed_decides_the_weights_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(9)
    before = torch.get_rng_state()
    one, same, other = (LAST.build(EXPORT, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.output.weight, same.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)


def test_it_learns_entities(sentences, frozen, encoder) -> None:
    samples = LAST.embed(sentences, LAST.encode(sentences, encoder, training=True), frozen)
    model = LAST.build(EXPORT, 0)
    losses: list[float] = []
    point = Hyperparameters(learning_rate=1e-2, epochs=40, batch_size=4, seed=0)
    learn(model, samples, LAST.collate, point, Settings(), CPU, lambda _, of_epoch: losses.extend(of_epoch))
    logits = predict(model, samples, LAST.collate, Settings(), CPU)
    outcome = LAST.conclude(sentences, samples, logits)
    assert outcome.metrics["f1"] > 90
    first_line = outcome.files["predictions.txt"].splitlines()[0].split()
    assert first_line[0] == sentences[0].words[0]
    assert len(first_line) == 3
