"""Entities from a frozen encoder: its hidden states, computed once and kept on disk, and a BiLSTM that reads them.

Paper, section 5.3 and table 7: a two-layer 768-dimensional BiLSTM before the classification layer. What it doesn't say
is chosen here: 768 units in each direction, a dropout of 0.5 around and between the layers, and the weights of weighted
sums are learned, as in ELMo (Peters et al., 2018, equation 1).

W words of B sentences laid end to end, L layers, D model, K tags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence
from typing_extensions import override

from eval.encoding import Encoder
from eval.encoding import collate as collate_tokens
from eval.errors import UsageError
from eval.finetune import autocast, cut
from eval.heads import load_encoder
from eval.kinds import Frozen, Kind, Outcome, Tags, judge_tags
from eval.locks import locked
from eval.readers.examples import TaggedSentence
from eval.tagging import Passage, tag_numbers
from preprocessing.status import exists, make_folder
from trainer.files import incomplete, sync
from trainer.hugging_face import Export
from trainer.model import BertConfig, BertModel
from trainer.packing import send

Combine = Literal["concatenated", "weighted"]


@dataclass(frozen=True)
class Sentence:
    """A sentence of w words.

    Attributes:
        states: float16 [w, L, D], on disk.
        targets: its tags.
    """

    states: np.ndarray
    targets: tuple[int, ...]

    @property
    def size(self) -> int:
        """Words."""
        return len(self.targets)


@dataclass(frozen=True)
class Sentences:
    """A batch.

    Attributes:
        states: float32 [W, L, D].
        targets: int64 [W].
        lengths: words of each sentence.
    """

    states: Tensor
    targets: Tensor
    lengths: list[int]

    @property
    def count(self) -> int:
        """Targets, all of which count."""
        return len(self.targets)

    def to(self, device: torch.device) -> Sentences:
        """The same on a device."""
        return dataclasses.replace(self, states=send(self.states, device), targets=send(self.targets, device))


class LstmTagger(nn.Module):
    """A two-layer BiLSTM with a classification layer."""

    def __init__(self, layers: int, width: int, combine: Combine, units: int, tags: int, dropout: float) -> None:
        super().__init__()
        self.mixture = nn.Parameter(torch.zeros(layers)) if combine == "weighted" else None
        self.scale = nn.Parameter(torch.ones(())) if combine == "weighted" else None
        inputs = width if combine == "weighted" else layers * width
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(inputs, units, num_layers=2, dropout=dropout, bidirectional=True)
        self.output = nn.Linear(2 * units, tags)

    def forward(self, batch: Sentences) -> Tensor:
        """[W, L, D] -> [W, K]."""
        words = self.dropout(self._combine(batch.states))
        packed: PackedSequence = pack_sequence(words.split(batch.lengths), enforce_sorted=False)
        read, _ = self.lstm(packed)
        logits: Tensor = self.output(self.dropout(torch.cat(unpack_sequence(read))))
        return logits

    def _combine(self, states: Tensor) -> Tensor:
        """[W, L, D] -> [W, D], or [W, L * D]."""
        if self.mixture is None or self.scale is None:
            return states.flatten(1)
        return self.scale * torch.einsum("wld,l->wd", states, torch.softmax(self.mixture, dim=0))

    def losses(self, logits: Tensor, batch: Sentences) -> Tensor:
        """Cross entropies [W]."""
        return F.cross_entropy(logits.float(), batch.targets, reduction="none")

    def split(self, logits: Tensor, batch: Sentences) -> list[Tensor]:
        """[W, K] -> B x [w, K]."""
        return list(logits.split(batch.lengths))


@dataclass(frozen=True)
class FeatureTags(Kind):
    """Entities by a BiLSTM on some of the hidden states of a frozen encoder, each sentence within its document.

    Attributes:
        first: of the states, the embeddings being number 0; negative counts from the last, which is -1.
        last: the last one, included.
        combine: how several are joined.
        units: of the BiLSTM, in each direction and layer.
        dropout: around and between its layers.
    """

    files = Tags.files

    first: int
    last: int
    combine: Combine = "concatenated"
    units: int = 768
    dropout: float = 0.5
    reading: Tags = dataclasses.field(default_factory=Tags)

    @override
    def check(self, config: BertConfig) -> None:
        self._layers(config)

    def _layers(self, config: BertConfig) -> range:
        """The numbers of the states that are read."""
        count = config.num_hidden_layers + 1
        if (wanted := max(-self.first, self.last + 1)) > count:
            raise UsageError(
                f"{wanted} states of a token are read, and a model of {config.num_hidden_layers} layers has {count}; "
                "leave this task out"
            )
        return range(self.first % count, self.last % count + 1)

    @override
    def encode(self, examples: Sequence[TaggedSentence], encoder: Encoder, training: bool) -> list[Passage]:
        """As Tags has them, all that show the same in one: nothing of the encoder changes from epoch to epoch."""
        return self.reading.encode(examples, encoder, training=False)

    @override
    def embed(self, examples: Sequence[TaggedSentence], samples: Sequence[Passage], frozen: Frozen) -> list[Sentence]:
        """Every sentence's states."""
        states = hidden_states(examples, samples, frozen)
        read = self._layers(frozen.export.config)
        states = states[:, read.start : read.stop]
        ends = np.cumsum([len(sentence.words) for sentence in examples]).tolist()
        labels = [tag_numbers(sentence, self.reading.classes) for sentence in examples]
        return [Sentence(states[begin:end], label) for begin, end, label in zip([0, *ends], ends, labels, strict=False)]

    @override
    def collate(self, samples: Sequence[Sentence]) -> Sentences:
        states = torch.from_numpy(np.concatenate([sample.states for sample in samples]).astype(np.float32))
        targets = torch.tensor([target for sample in samples for target in sample.targets])
        return Sentences(states, targets, [sample.size for sample in samples])

    @override
    def build(self, export: Export, seed: int) -> nn.Module:
        """A BiLSTM of new weights, by torch's own initialisation; the encoder is no part of it."""
        layers = len(self._layers(export.config))
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return LstmTagger(
                layers, export.config.hidden_size, self.combine, self.units, len(self.reading.classes), self.dropout
            )

    @override
    def conclude(
        self, examples: Sequence[TaggedSentence], samples: Sequence[Sentence], logits: Sequence[np.ndarray]
    ) -> Outcome:
        """The most probable tags."""
        tags = self.reading.classes
        return judge_tags(examples, [[tags[number] for number in of_it.argmax(axis=1)] for of_it in logits])


def hidden_states(examples: Sequence[TaggedSentence], samples: Sequence[Passage], frozen: Frozen) -> np.ndarray:
    """The states of every word's first piece, float16 [words, L + 1, D], mapped from disk; made where they are missing.

    A word without a piece has zeros.
    """
    path = frozen.folder / f"{frozen.name}.npy"
    make_folder(frozen.folder, parents=True)
    with locked(path.with_suffix(".lock")):
        if not exists(path):
            _compute(path, examples, samples, frozen)
    states: np.ndarray = np.load(path, mmap_mode="r")
    return states


def _compute(path: Path, examples: Sequence[TaggedSentence], samples: Sequence[Passage], frozen: Frozen) -> None:
    first_words = np.cumsum([0, *(len(sentence.words) for sentence in examples)])
    staging = incomplete(path)
    staging.unlink(missing_ok=True)  # of a process that was killed; or a link, which would be written through
    try:
        with staging.open("xb") as file:
            _write(file, samples, first_words, frozen)
        sync(staging)
    except OSError:  # of a full disk, on which others have results to write
        staging.unlink(missing_ok=True)
        raise
    staging.replace(path)


def _write(file: BinaryIO, samples: Sequence[Passage], first_words: np.ndarray, frozen: Frozen) -> None:
    """Write states as they are found. Not through a map: a full disk kills the process that writes there."""
    config = frozen.export.config
    shape = (int(first_words[-1]), config.num_hidden_layers + 1, config.hidden_size)
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float16)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    begin, size = file.tell(), shape[1] * shape[2] * np.dtype(np.float16).itemsize  # of the words, of one
    file.truncate(begin + shape[0] * size)
    bert = load_encoder(frozen.export).to(frozen.device).eval()
    for part in cut([sample.size for sample in samples], frozen.settings.max_tokens):
        rows, found = _states(bert, [samples[i] for i in part], first_words, frozen)
        for row, of_word in zip(rows.tolist(), found, strict=True):
            file.seek(begin + row * size)
            file.write(of_word.tobytes())


@torch.inference_mode()
def _states(
    bert: BertModel, samples: Sequence[Passage], first_words: np.ndarray, frozen: Frozen
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the words of some passages [n], and their states [n, L + 1, D]."""
    tokens = collate_tokens(samples).tokens.to(frozen.device)
    with autocast(frozen.settings, frozen.device):
        states = torch.stack(bert.hidden_states(tokens))  # [L + 1, T, D]
    begins = tokens.bounds.tolist()
    words = [
        (first_words[word.sentence] + word.word, begin + word.place)
        for sample, begin in zip(samples, begins, strict=False)
        for word in sample.words
    ]
    rows, places = np.array(words, np.int64).reshape(-1, 2).T  # none where no word begins in these
    chosen = states[:, torch.from_numpy(places).to(frozen.device)].transpose(0, 1)
    return rows, chosen.half().cpu().numpy()
