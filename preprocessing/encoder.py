"""Sentences to ids, many times as fast as `tokenizers` alone and with the same ids.

A corpus repeats its words: a million words of English have some fifty thousand different ones. So a word is tokenized
once and looked up from then on, by one of two engines:

    nanotoken   a Rust library that keeps such a cache. Young, so it may be missing, and is never trusted unchecked.
    words       the same idea on pyarrow and `tokenizers`, which is here whenever the rest is.

`tokenizers` is the definition of what is right: a sample of every block is encoded by it too, and ids that differ end
the job. Blanks part words in BERT's tokenization whatever stands around them, which is why looking up is exact.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preprocessing.tokenization import build_tokenizer, encode_sentences

Engine = Literal["auto", "nanotoken", "words"]
BLOCK = 1 << 15  # sentences encoded at once: about 4 MB of text
CHECKED_EVERY = 512  # one sentence in this many is compared: it costs less than 1 % of tokenizing everything
REMEMBERED = 1 << 22  # words, parts of words, and ids of both; some 200 MB. When they are too many, all are forgotten

# Words of nothing but visible ASCII and general punctuation are taken apart here as BERT does, so that "whale",
# "whale," and "whale--ship" are tokenized once.
_PLAIN = re.compile("[!-~\u2010-\u2027]+")
_PARTS = re.compile("[0-9A-Za-z]+|[^0-9A-Za-z]")


class EncoderError(ValueError):
    """An engine that is not installed, or that gave other ids than `tokenizers`."""


class Encoded(NamedTuple):
    """The ids of some sentences, one after the other."""

    ids: np.ndarray  # uint32 [tokens]
    ends: np.ndarray  # int64 [sentences], the exclusive end of each in ``ids``


class WordCache:
    """The engine on pyarrow and `tokenizers`.

    Args:
        encode: the ids of each of some texts, by `tokenizers`.
        remembered: how many words, parts and ids are kept; a sentence without blanks is a word, of many ids.
    """

    def __init__(self, encode: Callable[[Sequence[str]], list[list[int]]], remembered: int = REMEMBERED):
        self._encode, self._remembered = encode, remembered
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[str, array[int]] = {}
        self._ids_of_parts = 0
        self._numbers: dict[str, int] = {}  # word -> its place in the two below
        self._ids = array("I")  # of all words, one after the other
        self._ends = array("q", [0])  # word n is ids[ends[n] : ends[n + 1]]

    def __call__(self, sentences: Sequence[str]) -> Encoded:
        """Encode sentences, at least one."""
        text = " \n ".join(sentences)
        if text.count("\n") >= len(sentences):
            text = " \n ".join(sentence.replace("\n", " ") for sentence in sentences)
        words = pc.split_pattern(pa.array([text + " \n"]), " ").values.dictionary_encode()
        distinct = words.dictionary.to_pylist()
        if self.size + len(distinct) > self._remembered:
            self._forget()
        self._learn([word for word in distinct if word not in self._numbers])
        numbers = np.fromiter(map(self._numbers.__getitem__, distinct), dtype=np.int64, count=len(distinct))
        codes = words.indices.to_numpy()
        all_ends = np.frombuffer(self._ends, dtype=np.int64)
        begins, lengths = all_ends[numbers][codes], np.diff(all_ends)[numbers][codes]
        ends = np.cumsum(lengths)
        taken = np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1])
        ids = np.frombuffer(self._ids, dtype=np.uint32)[taken] if len(self._ids) else np.empty(0, dtype=np.uint32)
        return Encoded(ids, ends[codes == distinct.index("\n")])

    @property
    def size(self) -> int:
        """What is kept by now."""
        return len(self._numbers) + len(self._ids) + len(self._parts) + self._ids_of_parts

    def _learn(self, words: list[str]) -> None:
        parts = [_PARTS.findall(word) if _PLAIN.fullmatch(word) else [word] for word in words]
        new = list({part: None for part in chain.from_iterable(parts) if part not in self._parts})
        for part, ids in zip(new, self._encode(new), strict=True):
            self._parts[part] = array("I", ids)
            self._ids_of_parts += len(ids)
        for word, own in zip(words, parts, strict=True):
            for part in own:
                self._ids.extend(self._parts[part])
            self._numbers[word] = len(self._numbers)
            self._ends.append(len(self._ids))


def _nanotoken(vocabulary: Sequence[str], lowercase: bool) -> Callable[[Sequence[str]], Encoded]:
    """The engine on nanotoken."""
    import nanotoken

    definition = json.loads(build_tokenizer(vocabulary, lowercase).to_str())
    definition["added_tokens"] = []  # what looks like a special token in a corpus is text
    tokenizer = nanotoken.Tokenizer.from_json(json.dumps(definition))

    def encode(sentences: Sequence[str]) -> Encoded:
        found = tokenizer.encode_batch(sentences, add_special_tokens=False, parallel=False)
        return Encoded(found.ids, found.offsets[1:])

    return encode


def available_engine(wanted: Engine) -> Engine:
    """The engine that will be used: nanotoken where it is installed, unless another is wanted.

    Raises:
        EncoderError: nanotoken is wanted and not installed.
    """
    installed = find_spec("nanotoken") is not None
    if wanted == "nanotoken" and not installed:
        raise EncoderError("nanotoken is not installed: pip install 'bert-pretraining[fast]', or leave --encoder out")
    return ("nanotoken" if installed else "words") if wanted == "auto" else wanted


class Encoder:
    """Encodes sentences with one of the engines, and checks it; threads may share one, and wait for each other.

    Attributes:
        engine: which one.
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool, engine: Engine = "auto"):
        """Load an engine.

        Raises:
            EncoderError: it is not installed.
        """
        self._tokenizer = build_tokenizer(vocabulary, lowercase)
        self.engine = available_engine(engine)
        self._encode = (
            _nanotoken(vocabulary, lowercase) if self.engine == "nanotoken" else WordCache(self._by_definition)
        )
        # Neither the cache of words nor the switch of `tokenizers` for special tokens stands two threads at once.
        self._lock = threading.Lock()

    def _by_definition(self, sentences: Sequence[str]) -> list[list[int]]:
        return encode_sentences(self._tokenizer, sentences)

    def __call__(self, sentences: Sequence[str]) -> Encoded:
        """The ids of each sentence, as tokenization.encode_sentences gives them.

        Raises:
            EncoderError: the engine's ids of a sentence are others.
        """
        blocks = [sentences[begin : begin + BLOCK] for begin in range(0, len(sentences), BLOCK)]
        with self._lock:
            encoded = [self._checked(block) for block in blocks]
        if len(encoded) == 1:
            return encoded[0]
        origins = np.cumsum([0, *(len(block.ids) for block in encoded)])
        return Encoded(
            _joined((block.ids for block in encoded), np.uint32),
            _joined((block.ends + origin for block, origin in zip(encoded, origins, strict=False)), np.int64),
        )

    def _checked(self, block: Sequence[str]) -> Encoded:
        encoded = self._encode(block)
        sample = range(0, len(block), CHECKED_EVERY)
        for number, right in zip(sample, self._by_definition([block[number] for number in sample]), strict=True):
            begin = int(encoded.ends[number - 1]) if number else 0
            if encoded.ids[begin : encoded.ends[number]].tolist() != right:
                raise EncoderError(
                    f"the engine {self.engine!r} gives other ids than `tokenizers` for {block[number]!r}; "
                    "report this, and use the other engine of --encoder meanwhile"
                )
        return encoded


def _joined(arrays: Iterable[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays])
