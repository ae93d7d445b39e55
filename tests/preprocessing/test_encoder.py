from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocessing import encoder as encoders
from preprocessing.encoder import Encoded, Encoder, EncoderError, Engine, WordCache, available_engine
from preprocessing.tokenization import build_tokenizer, encode_sentences, load_vocabulary

ENGINES: list[Engine] = ["words", "nanotoken"]
VOCABULARIES = {"uncased": True, "multilingual-cased": False}
# Random text: letters that lower-case or decompose in odd ways, marks, controls, scripts without blanks.
RANGES = [(0x0, 0x7F), (0x20, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0xAC00, 0xAC40),
          (0x1100, 0x11FF), (0x1E00, 0x2070), (0x3000, 0x30FF), (0x4E00, 0x4E40), (0xFE00, 0xFFFF), (0x1F300, 0x1F6FF),
          (0x20000, 0x20020), (0xE0000, 0xE01EF), (0x0, 0x10FFFF)]  # fmt: skip
ODD = [
    "", " ", "\n", "a\nb", " \n ", "a \u0301b", "\u0301\u0327", "e\u0327\u0301", "İstanbul ΣΑΣ ς",
    "x" * 100, "x" * 101, "a\u2044b\u2052c 1\u20442",
    "don't--stop\u2014\u201cnow\u201d\u2026", "中文字 mixed中english", "한국어\u1100\u1161", "##ing ing",
    "[MASK] [CLS][SEP] [UNK] [PAD]",
    "a\x00b\x0bc\x1cd", "\u00a0\u2028\u3000\ufeff\u00ad\u200b", "\U0001f468\u200d\U0001f469", "ﬁ ǆ ß ẞ",
    "y" * 300 + "!" * 300,
]  # fmt: skip


@pytest.fixture(scope="module", params=VOCABULARIES)
def vocabulary_of(request: pytest.FixtureRequest, real_data: Path) -> tuple[list[str], bool]:
    return load_vocabulary(real_data / "vocab" / f"bert-base-{request.param}-vocab.txt"), VOCABULARIES[request.param]


@pytest.fixture(scope="module", params=ENGINES)
def both(request: pytest.FixtureRequest, vocabulary_of: tuple[list[str], bool]) -> Callable[[Sequence[str]], None]:
    """Compares an engine with `tokenizers` on some sentences."""
    if request.param == "nanotoken":
        pytest.importorskip("nanotoken")
    encoder, tokenizer = Encoder(*vocabulary_of, request.param), build_tokenizer(*vocabulary_of)

    def compare(sentences: Sequence[str]) -> None:
        encoded, right = encoder(sentences), encode_sentences(tokenizer, sentences)
        assert len(encoded.ends) == len(sentences)
        assert len(encoded.ids) == (encoded.ends[-1] if len(sentences) else 0)
        assert [encoded.ids[a:b].tolist() for a, b in pairwise([0, *encoded.ends.tolist()])] == right

    return compare


def test_ids_are_those_of_tokenizers_on_real_text(both: Callable[[Sequence[str]], None], real_data: Path) -> None:
    books = ("books/pg11-alices-adventures-in-wonderland.txt", "books/pg48731-les-mis-rables.txt")
    for file in (*books, "wikitext/wikitext-2.valid.txt", "korean/kowiki/wiki_07", "korean/nsmc/ratings_test.txt"):
        both((real_data / file).read_text(encoding="utf-8")[:150_000].split("\n"))


def test_ids_are_those_of_tokenizers_on_odd_and_random_text(both: Callable[[Sequence[str]], None]) -> None:
    both([])
    both([""])
    both(["a\nb", "c"])
    both(ODD)
    chance = random.Random(3)
    for _ in range(4):
        low, high = zip(*chance.choices(RANGES, k=60_000), strict=True)
        points = (chance.randint(a, b) for a, b in zip(low, high, strict=True))
        text = "".join(chr(point) if not 0xD800 <= point < 0xE000 else " " for point in points)
        both([text[begin : begin + 30] for begin in range(0, len(text), 30)])


@settings(max_examples=150, deadline=None)
@given(sentences=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=6))
def test_ids_are_those_of_tokenizers_on_anything(both: Callable[[Sequence[str]], None], sentences: list[str]) -> None:
    both(sentences)


def test_words_that_were_forgotten_are_learnt_again(vocabulary: list[str]) -> None:
    tokenizer = build_tokenizer(vocabulary, lowercase=True)
    cache = WordCache(lambda texts: encode_sentences(tokenizer, texts), remembered=10)
    for sentences in (
        ["the whale, the ship"],
        ["sailed under the sea over the old ship by himself alone"],
        ["the sea"],
    ):
        assert cache(sentences).ids.tolist() == encode_sentences(tokenizer, sentences)[0]


def test_sentences_without_blanks_and_words_of_many_parts_are_forgotten_too(vocabulary: list[str]) -> None:
    """Each of the former is a word that hardly comes again, and of the latter all parts are kept."""
    tokenizer = build_tokenizer(vocabulary, lowercase=True)
    cache = WordCache(lambda texts: encode_sentences(tokenizer, texts), remembered=1000)
    sizes = []
    for number in range(100):
        sentences = ["".join(chr(0x4E00 + (number * 97 + place) % 5000) for place in range(40)), f"a{number}-" * 40]
        assert cache(sentences).ids.tolist() == list(chain.from_iterable(encode_sentences(tokenizer, sentences)))
        sizes.append(cache.size)
    assert 500 < max(sizes) < 1300  # what a call brings comes on top


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_may_share_an_encoder(vocabulary: list[str], engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "nanotoken":
        pytest.importorskip("nanotoken")
    encoder = Encoder(vocabulary, True, engine)
    encode, inside, most = encoder._encode, [0], [0]

    def counted(sentences: Sequence[str]) -> Encoded:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)  # others would come in meanwhile
        encoded = encode(sentences)
        inside[0] -= 1
        return encoded

    monkeypatch.setattr(encoder, "_encode", counted)
    blocks = [[f"the ship {number} [MASK] sailed", "x" * number] for number in range(1, 17)]
    right = [encode_sentences(build_tokenizer(vocabulary, lowercase=True), block) for block in blocks]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(encoder, blocks))
    assert most == [1]
    assert [encoded.ids.tolist() for encoded in found] == [list(chain.from_iterable(ids)) for ids in right]


def test_sentences_are_counted_over_blocks(vocabulary: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["the whale sailed", "", "under the sea", "and home", "x"]
    whole = Encoder(vocabulary, True, "words")(sentences)
    monkeypatch.setattr(encoders, "BLOCK", 2)
    parts = Encoder(vocabulary, True, "words")(sentences)
    assert parts.ids.tolist() == whole.ids.tolist()
    assert parts.ends.tolist() == whole.ends.tolist()


def test_an_engine_that_is_wrong_ends_the_job(vocabulary: list[str]) -> None:
    encoder = Encoder(vocabulary, True, "words")
    encoder._encode = lambda sentences: Encoded(np.zeros(len(sentences), np.uint32), np.arange(1, len(sentences) + 1))
    with pytest.raises(EncoderError, match=r"other ids than `tokenizers` for 'the whale'; .* --encoder"):
        encoder(["the whale", "the ship"])


def test_an_engine_that_is_wrong_further_on_ends_the_job_too(
    vocabulary: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "CHECKED_EVERY", 2)
    encoder = Encoder(vocabulary, True, "words")
    encode = encoder._encode
    encoder._encode = lambda sentences: encode([*sentences[:2], "the whale", *sentences[3:]])
    assert len(encoder(["the ship", "sailed", "the whale", "home"]).ends) == 4
    with pytest.raises(EncoderError, match="other ids than `tokenizers` for 'the sea'"):
        encoder(["the ship", "sailed", "the sea", "home"])


def test_sentences_without_tokens_may_come_first(vocabulary: list[str]) -> None:
    encoded = Encoder(vocabulary, True, "words")(["", " "])
    assert (encoded.ids.tolist(), encoded.ends.tolist()) == ([], [0, 0])


def test_nanotoken_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "find_spec", lambda name: None)
    assert available_engine("auto") == "words"
    with pytest.raises(EncoderError, match=r"pip install .bert-pretraining\[fast\]"):
        available_engine("nanotoken")


def test_nanotoken_is_used_where_it_is_installed() -> None:
    pytest.importorskip("nanotoken")
    assert available_engine("auto") == "nanotoken"
    assert available_engine("words") == "words"
