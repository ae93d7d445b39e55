"""Words with tags: which pieces stand for them, and what of their document a passage shows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eval.encoding import Encoder
from eval.readers import conll
from eval.readers.examples import TaggedSentence
from eval.tagging import _surround, passages, read_tags, tag_numbers
from preprocessing.tokenization import CONTINUATION, SPECIAL_TOKENS, build_tokenizer, load_tokenizer
from tests.eval.minilm import MINILM
from trainer.model import EMPTY_SLOT

TAGS = ["O", "B-PER", "I-PER"]
LETTERS = "abcdefghij"
TOKENIZER = build_tokenizer([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "-"], lowercase=False)


def sentence(words: str, tags: str, document: int = 0, position: int = 0) -> TaggedSentence:
    return TaggedSentence(f"{document}-{position}", tuple(words.split()), tuple(tags.split()), document)


def tokens(passage) -> list[str]:
    return [TOKENIZER.id_to_token(i) for i in passage.sequences[0].ids]


def test_the_first_piece_of_a_word_carries_its_tag() -> None:
    [found] = passages([sentence("ab c d-e", "I-PER O I-PER")], Encoder(TOKENIZER, 20), TAGS, True, False)
    assert tokens(found) == ["[CLS]", "a", "##b", "c", "d", "-", "e", "[SEP]"]
    _ = EMPTY_SLOT
    assert found.targets == (_, 1, _, 0, 1, _, _, _)  # IOB1 has become IOB2
    assert [(word.word, word.place) for word in found.words] == [(0, 1), (1, 3), (2, 4)]


DOCUMENT = [
    sentence("a b", "O O", 0, 0), sentence("c d", "O B-PER", 0, 1), sentence("e f", "O O", 0, 2),
    sentence("g h", "B-PER I-PER", 1, 0),
]  # fmt: skip


def test_a_sentence_within_its_document() -> None:
    found = passages(DOCUMENT, Encoder(TOKENIZER, 6), TAGS, context=True, merged=False)
    shown = ["".join(tokens(passage)[1:-1]) for passage in found]
    assert shown == ["abcd", "bcde", "cdef", "gh"]  # never beyond the document
    asked = [
        "".join(token for token, target in zip(tokens(p), p.targets, strict=True) if target != EMPTY_SLOT)
        for p in found
    ]
    assert asked == ["ab", "cd", "ef", "gh"]
    alone = passages(DOCUMENT, Encoder(TOKENIZER, 6), TAGS, context=False, merged=False)
    assert ["".join(tokens(passage)[1:-1]) for passage in alone] == ["ab", "cd", "ef", "gh"]


def test_passages_that_show_the_same_are_one() -> None:
    found = passages(DOCUMENT, Encoder(TOKENIZER, 20), TAGS, context=True, merged=True)
    assert ["".join(tokens(passage)[1:-1]) for passage in found] == ["abcdef", "gh"]
    assert [(w.sentence, w.word, w.place) for w in found[0].words] == [
        (0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4), (2, 0, 5), (2, 1, 6),
    ]  # fmt: skip


@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 20), st.integers(20, 40))
def test_as_much_as_fits_on_both_sides(length: int, begin: int, size: int, room: int) -> None:
    begin = min(begin, length - 1)
    end = min(begin + size, length)
    left, right = _surround(begin, end, length, room)
    assert 0 <= left <= begin < end <= right <= length
    assert right - left == min(room, length)
    if left > 0 and right < length:
        assert abs((begin - left) - (right - end)) <= 1


def test_a_sentence_longer_than_a_sequence_is_divided() -> None:
    long = sentence("a b c d e f g", "O " * 7)
    found = passages([long], Encoder(TOKENIZER, 5), TAGS, context=True, merged=False)
    assert [len(passage.words) for passage in found] == [3, 3, 1]
    assert "".join(tokens(found[2])[1:-1]) == "efg"


def test_predictions_go_back_to_their_words() -> None:
    sentences = [*DOCUMENT, sentence("\x01 a", "O O", 2, 0)]  # a control character has no piece
    for merged in (False, True):
        found = passages(sentences, Encoder(TOKENIZER, 6), TAGS, True, merged)
        logits = []
        for passage in found:
            scores = np.zeros((len(passage.words), 3))
            scores[np.arange(len(scores)), [sentences[w.sentence].document % 2 + w.word % 2 for w in passage.words]] = 1
            logits.append(scores)
        assert read_tags(sentences, found, logits, TAGS) == [
            ["O", "B-PER"], ["O", "B-PER"], ["O", "B-PER"], ["B-PER", "I-PER"], ["O", "B-PER"],
        ]  # fmt: skip


def test_real_sentences_are_asked_for_whole(real_data) -> None:
    sentences = conll.read(real_data, "dev")[:400]
    tags = ["O", *(f"{prefix}-{kind}" for kind in conll.ENTITY_TYPES for prefix in "BI")]
    encoder = Encoder(load_tokenizer(MINILM), 128)
    for merged in (False, True):
        found = passages(sentences, encoder, tags, True, merged)
        words = [(word.sentence, word.word) for passage in found for word in passage.words]
        assert sorted(words) == [(i, j) for i, s in enumerate(sentences) for j in range(len(s.words))]
        for passage in found:
            targets = [target for target in passage.targets if target != EMPTY_SLOT]
            assert targets == [tag_numbers(sentences[w.sentence], tags)[w.word] for w in passage.words]
            assert [w.place for w in passage.words] == sorted(w.place for w in passage.words)
            pieces = [encoder._tokenizer.id_to_token(passage.sequences[0].ids[w.place]) for w in passage.words]
            assert not any(piece.startswith(CONTINUATION) for piece in pieces)
            assert passage.size <= 128
