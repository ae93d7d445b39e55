"""From texts to sequences: as google-research/bert and transformers build them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from eval.encoding import Encoder, Sample, Segments, collate, shorten, truncate_pair
from eval.tasks.datasets import READERS
from preprocessing.tokenization import SPECIAL_TOKENS, build_tokenizer, load_tokenizer
from tests.conftest import ROOT
from tests.eval.minilm import MINILM
from trainer.model import EMPTY_SLOT

WORDS = [*SPECIAL_TOKENS, "a", "b", "c", "[", "]", "sep", "cls"]


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(build_tokenizer(WORDS, lowercase=True), max_length=8)


def google_truncation(first: list[int], second: list[int], room: int) -> tuple[int, int]:
    """The rule of run_classifier.py in its own words: pop from the longer list while both together are too long."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return len(first), len(second)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 50))
def test_pairs_lose_tokens_as_googles_do(first: int, second: int, room: int) -> None:
    assert truncate_pair(first, second, room) == google_truncation([0] * first, [0] * second, room)


def test_many_texts_take_little_more_than_their_ids(tmp_path: Path) -> None:
    """QQP's took half a gigabyte more, in each of a grid's processes. Here in one of its own, whose peak is known."""
    build_tokenizer(WORDS, lowercase=True).save(str(tmp_path / "tokenizer.json"))
    program = f"""if True:
        from pathlib import Path
        from tokenizers import Tokenizer
        from eval.encoding import Encoder

        def peak():  # not by getrusage, which starts from that of the process before
            return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

        encoder, most = Encoder(Tokenizer.from_file("{tmp_path}/tokenizer.json"), 8), []
        for texts in (["a b c a b c"] * 1000, ["a b c a b c"] * 200_000, ["a b c"] * 1001):
            ids = encoder.ids(texts)
            most.append(peak())
        assert [len(of_text) for of_text in ids] == [3] * 1001 == [len(of_text) for of_text in encoder.pieces(texts)]
        print(most[1] - most[0])
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100_000  # kB


def test_texts_of_which_nothing_is_left_are_unknown_as_a_whole(encoder: Encoder) -> None:
    known, unknown, empty = (encoder.single(ids).ids for ids in encoder.ids(["a b", "a x y z", ""]))
    assert [encoder.unknown_share(ids) for ids in (known, unknown, empty)] == [0.0, 0.75, 1.0]


def test_long_texts() -> None:
    ids = np.arange(1000)
    assert shorten(ids, 510, "head").tolist() == list(range(510))
    assert shorten(ids, 510, "tail").tolist() == list(range(490, 1000))
    both = shorten(ids, 510, "head+tail").tolist()
    assert both == [*range(128), *range(1000 - 382, 1000)]  # Sun et al. (2019)
    assert len(shorten(ids, 62, "head+tail")) == 62
    for part in ("head", "tail", "head+tail"):
        assert shorten(ids[:510], 510, part).tolist() == list(range(510))


def test_a_text_and_a_pair(encoder: Encoder) -> None:
    a, b = encoder.ids(["a b c a", "c"])
    single, pair = encoder.single(a), encoder.pair(a, b)
    assert (single.ids.tolist(), single.second) == ([2, 5, 6, 7, 5, 3], 6)
    assert (pair.ids.tolist(), pair.second) == ([2, 5, 6, 7, 5, 3, 7, 3], 6)
    assert encoder.pair(a, np.concatenate([a, a])).ids.tolist() == [2, 5, 6, 7, 3, 5, 6, 3]
    assert encoder.single(np.concatenate([a, a]), "tail").ids.tolist() == [2, 7, 5, 5, 6, 7, 5, 3]


def test_a_special_token_in_a_text_is_text(encoder: Encoder) -> None:
    [ids] = encoder.ids(["a [SEP] b"])
    assert ids.tolist() == [5, 8, 10, 9, 6]


def test_a_tokenizer_that_cuts_and_pads_does_not_here_and_stays_as_it_was() -> None:
    tokenizer = build_tokenizer(WORDS, lowercase=True)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6)
    assert [len(ids) for ids in Encoder(tokenizer, 8).ids(["a b c a b c", "a"])] == [6, 1]
    assert len(tokenizer.encode("a b c a b c").ids) == 6
    assert tokenizer.encode("a [SEP]").tokens[:3] == ["[CLS]", "a", "[SEP]"]


def test_real_pairs_as_transformers_tokenizer_has_them(real_data) -> None:
    theirs = transformers.BertTokenizerFast.from_pretrained(MINILM)
    encoder = Encoder(load_tokenizer(MINILM), 128)
    examples = READERS["MRPC"](real_data, "dev")
    expected = theirs([e.a for e in examples], [e.b for e in examples], truncation="longest_first", max_length=128)
    pairs = zip(encoder.ids([e.a for e in examples]), encoder.ids([e.b for e in examples]), strict=True)
    found = [encoder.pair(a, b) for a, b in pairs]
    assert [f.ids.tolist() for f in found] == expected["input_ids"]
    types = [[int(i >= f.second) for i in range(len(f.ids))] for f in found]
    assert types == expected["token_type_ids"]


def test_a_batch() -> None:
    one, two = Segments(np.array([2, 5, 3, 6, 3], np.int32), 3), Segments(np.array([2, 7, 3], np.int32), 3)
    batch = collate([Sample((one,), (1,)), Sample((two, one), (EMPTY_SLOT,))])
    assert batch.tokens.input_ids.tolist() == [2, 5, 3, 6, 3, 2, 7, 3, 2, 5, 3, 6, 3]
    assert batch.tokens.token_type_ids.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    assert batch.tokens.bounds.tolist() == [0, 5, 8, 13]
    assert (batch.targets.tolist(), batch.targets.dtype, batch.count) == ([1, EMPTY_SLOT], torch.int64, 1)
    assert collate([Sample((one,), (2.5,)), Sample((two,), (3.0,))]).targets.dtype == torch.float32
    assert collate([Sample((one,), ())]).count == 0


def test_every_figure_counts_also_one_that_looks_like_an_empty_slot() -> None:
    one = Segments(np.array([2, 7, 3], np.int32), 3)
    assert collate([Sample((one,), (float(figure),)) for figure in (EMPTY_SLOT, EMPTY_SLOT, 1)]).count == 3
