"""Fine-tuning is transformers': from the same weights, on the same real data in the same order, the same losses.

Theirs is benchmarks/transformers_finetuning.py. There is no dropout, as the two draw it differently;
benchmarks/finetuning.py compares whole runs with dropout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import transformers_finetuning as peer
from eval.encoding import Encoder, Sample
from eval.finetune import Hyperparameters, Settings, epoch_batches, learn, predict
from eval.kinds import Choices, Kind, Questions, Tags, Texts
from eval.readers import conll, squad, swag
from eval.tasks.datasets import READERS
from preprocessing.tokenization import load_tokenizer
from tests.eval.minilm import MINILM
from trainer.hugging_face import Export, load_export, save_export
from trainer.model import EMPTY_SLOT

STEPS, BATCH = 50, 4
POINT = Hyperparameters(learning_rate=3e-4, epochs=1, batch_size=BATCH, seed=3)
SETTINGS = Settings(optimizer="adamw", decay_from="warmup")
CPU = torch.device("cpu")
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Case:
    """A task.

    Attributes:
        kind: of task.
        theirs: the name of their head.
        read: real examples.
        longest: tokens of a sequence.
        exact: take only samples of just so many tokens: where padding would count in their loss.
    """

    kind: Kind
    theirs: str
    read: Callable[[Path], Sequence[Any]]
    longest: int = 32
    exact: bool = False


TWO_CLASSES = Texts(("0", "1"))
CASES = {
    "MRPC": Case(TWO_CLASSES, "classifier", lambda data: READERS["MRPC"](data, "dev")),
    "RTE": Case(Texts(("entailment", "not_entailment")), "classifier", lambda data: READERS["RTE"](data, "dev")),
    "SST-2": Case(TWO_CLASSES, "classifier", lambda data: READERS["SST-2"](data, "dev")),
    "CoLA": Case(TWO_CLASSES, "classifier", lambda data: READERS["CoLA"](data, "train")[:400]),
    "STS-B": Case(Texts(()), "classifier", lambda data: READERS["STS-B"](data, "dev")),
    "CODAH": Case(Choices(), "classifier", lambda data: swag.read_codah(data, "dev"), longest=20),
    "SQuAD": Case(
        Questions("v1.1"), "qa_outputs", lambda data: squad.read(data, "dev-v1.1")[:400], longest=72, exact=True
    ),
    "CoNLL": Case(Tags(context=False), "classifier", lambda data: conll.read(data, "dev")),
}
ALIKE = ("RTE", "SST-2")  # are of the kinds of MRPC and CoLA


def samples_of(case: Case, data: Path) -> list[Sample]:
    encoder = Encoder(load_tokenizer(MINILM), case.longest)
    samples = case.kind.encode(case.read(data), encoder, training=True)
    fitting = [s for s in samples if not case.exact or s.size == case.longest]
    return [s for s in fitting if any(target != EMPTY_SLOT for target in s.targets)][: STEPS * BATCH]


def trimmed(samples: Sequence[Sample], layers: int, directory: Path) -> tuple[list[Sample], Export]:
    """The first layers of the published encoder, with those words that occur: smaller, and real.

    Args:
        samples: whose words occur.
        layers: how many.
        directory: where the export is written.

    Returns:
        The samples with the new numbers of their words, and the export.
    """
    config, state, _ = load_export(MINILM)
    words = np.unique(np.concatenate([s.ids for sample in samples for s in sample.sequences] + [[config.pad_token_id]]))
    beyond = tuple(f"bert.layers.{i}." for i in range(layers, config.num_hidden_layers))
    state = {name: tensor for name, tensor in state.items() if not name.startswith(beyond)}
    for name in ("bert.embeddings.word.weight", "mlm.bias"):
        state[name] = state[name][torch.from_numpy(words).long()]
    config = dataclasses.replace(config, vocab_size=len(words), num_hidden_layers=layers, **STILL)
    save_export(directory, state, config, MINILM, {})
    renumbered = [
        dataclasses.replace(
            sample, sequences=tuple(s._replace(ids=np.searchsorted(words, s.ids)) for s in sample.sequences)
        )
        for sample in samples
    ]
    return renumbered, load_export(directory)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        *((name, 2) for name in CASES if name not in ALIKE),
        *(pytest.param(name, 6, marks=pytest.mark.slow) for name in ALIKE),
        *(pytest.param(name, 6, marks=pytest.mark.long) for name in ("STS-B", "CODAH", "SQuAD", "CoNLL")),
    ],
)
def test_the_same_losses_for_fifty_steps(name: str, layers: int, real_data: Path, tmp_path: Path) -> None:
    case = CASES[name]
    samples, export = trimmed(samples_of(case, real_data), layers, tmp_path / "export")
    assert len(samples) == STEPS * BATCH
    ours = case.kind.build(export, seed=0)
    theirs = peer.build(case.kind, tmp_path / "export")
    theirs.get_submodule(case.theirs).load_state_dict(ours.head.output.state_dict())

    batches = epoch_batches(len(samples), BATCH, POINT.seed, 0)
    expected = list(peer.learn(theirs, samples, case.kind, batches, STEPS, POINT.learning_rate))
    found: list[float] = []
    learn(ours, samples, case.kind.collate, POINT, SETTINGS, CPU, lambda _, losses: found.extend(losses))

    difference = np.abs(np.subtract(found, expected)).max()
    print(
        f"{name}, {layers} layers: losses from {max(found):.2f} to {min(found):.2f} differ by {difference:.0e} at most"
    )
    assert difference < 1e-4
    assert np.std(found) > 1e-2  # something happened
    ours_logits = predict(ours, samples[:40], case.kind.collate, SETTINGS, CPU)
    for one, other in zip(ours_logits, peer.predict(theirs, samples[:40], case.kind), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-3)
