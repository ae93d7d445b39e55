from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from preprocessing.tokenization import (
    SPECIAL_TOKENS,
    VocabularyError,
    build_tokenizer,
    encode_sentences,
    load_vocabulary,
)
from preprocessing.vocabulary import extend_vocabulary, train_vocabulary

CORPUS = [f"the whale and the ship number {n}, sailing homeward; unsailed whales never sail" for n in range(200)]


def test_training_gives_one_vocabulary_whatever_the_order() -> None:
    first = train_vocabulary(CORPUS, 100, lowercase=True)
    assert len(first) == 100
    assert len(set(first)) == 100
    assert tuple(first[:5]) == SPECIAL_TOKENS
    assert "whale" in first
    for seed in range(4):
        shuffled = random.Random(seed).sample(CORPUS, len(CORPUS))
        assert train_vocabulary(shuffled, 100, lowercase=True) == first


SYLLABLES = [chr(0xAC00 + 28 * number) for number in range(200)]  # of Hangul; more than an alphabet has room for


def test_characters_that_are_equally_frequent_are_chosen_alike_in_any_order() -> None:
    first = train_vocabulary([2 * syllable for syllable in SYLLABLES], 400, lowercase=False)
    for seed in range(3):
        shuffled = [2 * syllable for syllable in random.Random(seed).sample(SYLLABLES, 200)]
        assert train_vocabulary(shuffled, 400, lowercase=False) == first


def test_an_eighth_of_the_vocabulary_is_for_the_most_frequent_characters() -> None:
    """By how often they occur, not by how many words have them."""
    frequent = SYLLABLES[120:]
    found = train_vocabulary([*SYLLABLES, *(" ".join([syllable] * 99) for syllable in frequent)], 640, lowercase=False)
    assert {token for token in found if len(token) == 1} == set(frequent)


def test_a_small_vocabulary_has_64_characters_and_not_an_eighth() -> None:
    ranked = [" ".join(SYLLABLES[: 100 - number]) for number in range(90)]  # the first is the most frequent
    words = " ".join(one + other for one in SYLLABLES[:12] for other in SYLLABLES[:12])  # that fill the rest
    found = train_vocabulary([*ranked, words, words], 160, lowercase=False)
    assert len(found) == 160
    assert {token for token in found if len(token) == 1} == set(SYLLABLES[:64])


def test_where_every_character_is_a_word_they_have_the_room_that_merges_leave() -> None:
    """As in Chinese: an eighth would leave most of the vocabulary unused, and most characters unknown."""
    characters = [chr(0x4E00 + i) for i in range(700)]
    text = [" ".join(characters[: 700 - 7 * i]) for i in range(20)] + ["".join(characters[:2]), characters[699]]
    found = train_vocabulary(text, 600, lowercase=False)
    assert len(found) == 600
    assert {token for token in found if len(token) == 1} == set(characters[:595])  # the most frequent
    found = train_vocabulary([*text, "字"], 2000, lowercase=False)
    assert {token for token in found if len(token) == 1} == {*characters[:693], characters[699]}  # not those seen once


def test_a_piece_that_occurs_once_is_none() -> None:
    found = train_vocabulary(["ab ab cd"], 1000, lowercase=True)
    assert "ab" in found
    assert "cd" not in found


def test_training_gives_one_vocabulary_in_every_process(real_data: Path) -> None:
    program = (
        "import sys, hashlib; from pathlib import Path; from preprocessing.vocabulary import train_vocabulary;"
        "lines = Path(sys.argv[1]).read_text(encoding='utf-8').split('\\n');"
        "print(hashlib.sha256('\\n'.join(train_vocabulary(lines, 2000, True)).encode()).hexdigest())"
    )
    book = real_data / "books" / "pg1155-the-secret-adversary.txt"
    command = [sys.executable, "-c", program, str(book)]
    assert len({subprocess.run(command, check=True, capture_output=True).stdout for _ in range(3)}) == 1


def test_training_keeps_case_and_accents_when_asked() -> None:
    corpus = ["Café Ωmega 한국", "Café Ωmega 한국"] * 3
    cased, uncased = (set(train_vocabulary(corpus, 75, lowercase)) for lowercase in (False, True))
    assert {"C", "##é", "Ω", "한"} <= cased
    assert {"c", "##e", "ω"} <= uncased
    assert not {"C", "##é", "Ω"} & uncased


def test_training_ends_short_when_the_text_has_no_more_and_says_what_cannot_be() -> None:
    assert len(train_vocabulary(["ab ab"], 1000, lowercase=True)) == 5 + 3 + 1  # a, b, ##b; ab
    with pytest.raises(VocabularyError, match="no text"):
        train_vocabulary([" \n"], 1000, lowercase=True)
    with pytest.raises(VocabularyError, match="no room"):
        train_vocabulary(CORPUS, 20, lowercase=True)


GIVEN = [*SPECIAL_TOKENS, *"abc", "##a", "##b", "##c", "ab", "##ca"]


def extended(texts: list[str], size: int = 100) -> list[str]:
    found = extend_vocabulary(GIVEN, texts, size, lowercase=True)
    assert found.tokens[: len(GIVEN)] == GIVEN  # whose ids are those of a model's rows
    return found.tokens[len(GIVEN) :]


def test_words_are_added_that_save_most_tokens() -> None:
    """acb is three tokens, cc and bb are two, abca is ab and ##ca; those that are one or occur once are left."""
    texts = ["acb cc " * 3, "bb " * 7, "abca " * 4, "ab a " * 9, "bc"]
    assert extended(texts) == ["bb", "acb", "abca", "cc"]
    assert extended(texts[::-1], len(GIVEN) + 2) == ["bb", "acb"]


def test_a_word_counts_by_what_it_saves_once_another_is_there() -> None:
    """After cca, ccab is two tokens and not four: bbb, seen as often, comes first."""
    assert extended(["cca " * 9, "ccab " * 4, "bbb " * 4]) == ["cca", "bbb", "ccab"]
    assert extended(["cca " * 9, "ccab " * 4]) == ["cca", "ccab"]


def test_what_several_words_begin_with_is_a_word_too() -> None:
    """acb saves two tokens in each of three words, and then bb in none of two; as the stems of Korean nouns do."""
    assert extended(["acbb acbc acba", "acba bcb"] * 2)[0] == "acb"
    assert extended(["acbb"] * 9 + ["acbc"] * 2) == [
        "acbb",
        "acbc",
    ]  # and no acb, which acbb does not begin with any more


def test_a_beginning_counts_by_the_tokens_that_its_words_have_less() -> None:
    """Those seen once are no entries themselves. acb saves two in each of them, abc, beside ab, one."""
    assert extended(["acbc", "acba", *["bb"] * 5]) == ["bb", "acb"]
    assert extended(["acbc", "acba", *["bb"] * 3]) == ["acb", "bb"]
    assert extended(["acbb"] * 9 + ["acbc", "acba"]) == ["acbb", "acb"], "acbb takes none from it, as it takes no acb"
    assert extended(["abcb", "abcc"]) == ["abc"]
    assert extended(["bb"] * 2 + ["bbx", "bby", "bbz"]) == ["bb"], "unknown words stay so"


def test_an_unknown_word_counts_as_one_of_two_tokens() -> None:
    assert extended(["xa"] * 5 + ["bb"] * 3) == ["x", "xa", "bb"]


def test_no_entry_makes_a_word_unknown_that_was_known() -> None:
    """With bb, bbx would be bb and ##x, which there is not; b and ##bx there are."""
    given = [*SPECIAL_TOKENS, "a", "b", "##b", "##bx", "##a"]
    found = extend_vocabulary(given, ["bb"] * 2 + ["bbx"] * 3, 11, lowercase=True)
    assert found.tokens[len(given) :] == ["bbx"]


def test_characters_that_make_words_unknown_are_added() -> None:
    added = extended(["xa axa xax"] * 3)
    assert added[:2] == ["##x", "x"]  # either is in two of the three words
    tokenizer = build_tokenizer([*GIVEN, *added[:2]], lowercase=True)
    assert [len(ids) for ids in encode_sentences(tokenizer, ["xa axa xax xaxa"])] == [2 + 3 + 3 + 4]
    assert added[2:] == ["axa", "xa", "xax"]  # which are cut up now, and had no pieces
    assert extended(["xa"] * 2) == ["x", "xa"]  # and no ##x, which is in no word
    assert extended(["ay"]) == []  # seen once


def test_a_word_that_is_too_long_for_the_tokenizer_is_not_added() -> None:
    assert extended([f"{'a' * 101} {'b' * 100} "] * 3) == ["b" * 100]
    with pytest.raises(VocabularyError, match="no text"):
        extended(["a" * 1_000_000])


def test_without_text_there_is_no_extension() -> None:
    with pytest.raises(VocabularyError, match="no text to learn words from"):
        extended([" "])


def test_a_published_vocabulary_takes_fewer_tokens_for_a_book_and_the_figures_are_the_tokenizers(
    real_data: Path,
) -> None:
    given = load_vocabulary(real_data / "vocab" / "bert-base-uncased-vocab.txt")
    text = (real_data / "books" / "pg1155-the-secret-adversary.txt").read_text(encoding="utf-8")
    found = extend_vocabulary(given, text.split("\n"), 30_700, lowercase=True)
    assert len(found.tokens) == len(set(found.tokens)) == 30_700
    assert "tuppence" in found.tokens[len(given) :]
    tokenizers = [build_tokenizer(tokens, lowercase=True) for tokens in (given, found.tokens)]
    words = len(tokenizers[0].pre_tokenizer.pre_tokenize_str(tokenizers[0].normalizer.normalize_str(text)))
    for tokenizer, told in zip(tokenizers, (found.before, found.after), strict=True):
        assert len(encode_sentences(tokenizer, [text])[0]) / words == pytest.approx(told, rel=1e-9)
    assert found.after < found.before
