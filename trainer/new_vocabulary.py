"""Give a pretrained model another vocabulary: one with the words of a domain, or of a language, that it lacked.

    python -m trainer.new_vocabulary bert-large-uncased shards/tokenizer bert-large-notes

The result is what --init-from takes. A word that both vocabularies have keeps its embedding and its bias; a new one
gets the mean of those of the pieces that the old vocabulary cuts it into (Gee et al., 2022, Fast Vocabulary Transfer),
or, where there are none, it into without capitals and accents, as an uncased model reads it; and where there are none
either, a character being unknown, what it would have in a new model. Everything else stays.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers.normalizers import BertNormalizer
from torch import Tensor

from preprocessing.command_line import OneLineParser, parse_path
from preprocessing.schema import TOKENIZER
from preprocessing.status import exists
from preprocessing.tokenization import PAD, VOCABULARY_FILE, check_files, cut, load_words
from trainer.derived import open_original, save_derived, write_new
from trainer.hugging_face import Export
from trainer.model import BertConfig, BertForPreTraining

_ROWS = ("bert.embeddings.word.weight", "mlm.bias")  # the parameters that have a row for each word

_UNCASED = BertNormalizer(handle_chinese_chars=False, lowercase=True)


class NewVocabulary(NamedTuple):
    """A model with another vocabulary, and how many of its words had which origin."""

    config: BertConfig
    state: dict[str, Tensor]
    kept: int
    from_pieces: int
    new: int


def change_vocabulary(export: Export, old: Sequence[str], words: Sequence[str]) -> NewVocabulary:
    """Exchange the vocabulary of a model.

    Args:
        export: the model; it may have more rows than words, as those have that are padded to a multiple of 8.
        old: its words in the order of their ids.
        words: those that it is to have.

    Raises:
        ValueError: the model has fewer rows than words.
    """
    if len(old) > export.config.vocab_size:
        raise ValueError(
            f"the model's tokenizer has {len(old)} words and its weights {export.config.vocab_size} rows; "
            "take tokenizer and weights of one model"
        )
    ids = {word: i for i, word in enumerate(old)}
    pieces = [
        [ids[word]] if word in ids else cut(word, ids) or cut(_UNCASED.normalize_str(word), ids) for word in words
    ]
    config = dataclasses.replace(export.config, vocab_size=len(words), pad_token_id=words.index(PAD))
    fresh = BertForPreTraining(config, seed=0).state_dict()  # for rows that nothing is known about
    rows = {name: _means(export.state[name], pieces, fresh[name]) for name in _ROWS}
    kept, unknown = sum(word in ids for word in words), sum(not of_word for of_word in pieces)
    return NewVocabulary(config, {**export.state, **rows}, kept, len(words) - kept - unknown, unknown)


def _means(rows: Tensor, pieces: Sequence[list[int]], fresh: Tensor) -> Tensor:
    """For each word the mean of its pieces' rows, float32, or its fresh row where it has no pieces."""
    return torch.stack([rows[of_word].float().mean(dim=0) if of_word else fresh[i] for i, of_word in enumerate(pieces)])


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m trainer.new_vocabulary MODEL TOKENIZER OUT``; the exit code is write_new's."""
    parser = OneLineParser(
        prog="python -m trainer.new_vocabulary", description="Give a pretrained model another vocabulary."
    )
    parser.add_argument("model", type=parse_path, help="a Hugging Face BERT directory, such as an export")
    parser.add_argument("tokenizer", type=parse_path, help="of the new vocabulary: SHARDS/tokenizer")
    parser.add_argument("output", type=parse_path, help="a new directory")
    arguments = parser.parse_args(argv)
    return write_new(arguments.output, lambda: _change(arguments.model, arguments.tokenizer, arguments.output))


def _change(model: Path, tokenizer: Path, output: Path) -> str:
    if not exists(tokenizer / VOCABULARY_FILE) and exists(tokenizer / TOKENIZER / VOCABULARY_FILE):
        raise ValueError(f"{tokenizer}: is a folder of shards; its tokenizer is {tokenizer / TOKENIZER}")
    check_files(tokenizer)
    export = open_original(model)
    changed = change_vocabulary(export, load_words(model), load_words(tokenizer))
    save_derived(output, changed.config, changed.state, tokenizer, model)
    return (
        f"{changed.config.vocab_size:,} words, {changed.kept:,} of them as they were, {changed.from_pieces:,} from "
        f"their pieces, {changed.new:,} new"
    )


if __name__ == "__main__":
    sys.exit(main())
