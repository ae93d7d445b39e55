from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizerFast

from preprocessing.tokenization import (
    SPECIAL_TOKENS,
    SpecialIds,
    VocabularyError,
    build_tokenizer,
    case_of,
    check_files,
    encode_sentences,
    load_tokenizer,
    load_vocabulary,
    parse_vocabulary,
    special_ids,
    train_vocabulary,
)
from tests.trainer.shard_factory import save_tokenizer

SENTENCES = [
    "The whale's ship sailed -- under the Sea!",
    "Señor Café never slept.",
    "한국어 문장, and 中文字.",
    "a\u00a0b\u200bc\u00ad d\ttab",
    "unaffable [MASK] [SEP]",
    "x" * 150,
]
CORPUS = [f"the whale and the ship number {n}, sailing homeward; unsailed whales never sail" for n in range(200)]


def vocabulary_error(text: str) -> str:
    with pytest.raises(VocabularyError) as caught:
        parse_vocabulary(text, "v.txt")
    return str(caught.value)


def test_a_vocabulary_is_its_lines() -> None:
    tokens = [*SPECIAL_TOKENS, "a", "\u2028", "##b"]
    assert parse_vocabulary("\n".join(tokens), "v.txt") == tokens
    assert parse_vocabulary("\ufeff" + "\r\n".join(tokens) + "\r\n", "v.txt") == tokens  # as some editors save it
    assert special_ids(["x", *SPECIAL_TOKENS]) == SpecialIds(pad=1, unknown=2, cls=3, sep=4, mask=5)


def test_a_bad_vocabulary_is_named_with_its_fault(tmp_path: Path) -> None:
    all_but_sep = "\n".join(token for token in SPECIAL_TOKENS if token != "[SEP]")
    assert "v.txt" in vocabulary_error(all_but_sep)
    assert "[SEP] is missing" in vocabulary_error(all_but_sep)
    assert "empty" in vocabulary_error("")
    for indent in (None, 2):  # a vocab.json and a tokenizer.json
        assert "v.txt: is JSON; give the vocab.txt" in vocabulary_error(json.dumps({"[PAD]": 0}, indent=indent))
    assert parse_vocabulary("\n".join(["{", *SPECIAL_TOKENS]), "v.txt")[0] == "{"
    assert "line 6 is empty" in vocabulary_error("\n".join(SPECIAL_TOKENS) + "\n\na\n")
    assert "'a' is on line 6 and again on 8" in vocabulary_error("\n".join([*SPECIAL_TOKENS, "a", "b", "a"]))
    with pytest.raises(VocabularyError, match="No such file"):
        load_vocabulary(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VocabularyError, match="UTF-8"):
        load_vocabulary(tmp_path / "binary")


@pytest.mark.parametrize(
    ("words", "case"),
    [
        ([f"word{i}" for i in range(200)], "uncased"),
        ([f"word{i}" for i in range(200)] + ["\u211d"], "uncased"),  # as bert-base-uncased has it
        ([f"word{i}" for i in range(200)] + ["K"], None),
        ([f"word{i}" for i in range(200)] + ["K", "L", "M"], "cased"),
        ([f"\u0436{i}" for i in range(200)], "uncased"),
        ([f"\u0436{i}" for i in range(200)] + [f"\u0416{i}" for i in range(9)], "cased"),
        ([f"\u10d0{i}" for i in range(200)], None),  # Georgian
        ([f"\ud55c{i}" for i in range(200)] + ["a"], None),  # Korean
        ([], None),
    ],
)
def test_a_vocabulary_tells_its_case_in_any_alphabet(words: list[str], case: str | None) -> None:
    assert case_of([*SPECIAL_TOKENS, "[unused1]", *words]) == case


@pytest.mark.parametrize(("file", "case"), [("uncased", "uncased"), ("multilingual-cased", "cased")])
def test_published_vocabularies_tell_their_case(real_data: Path, file: str, case: str) -> None:
    assert case_of(load_vocabulary(real_data / "vocab" / f"bert-base-{file}-vocab.txt")) == case


@pytest.mark.parametrize(("file", "lowercase"), [("uncased", True), ("multilingual-cased", False)])
def test_ids_are_those_of_transformers(real_data: Path, file: str, lowercase: bool) -> None:
    path = real_data / "vocab" / f"bert-base-{file}-vocab.txt"
    vocabulary = load_vocabulary(path)
    theirs = BertTokenizerFast(vocab=str(path), do_lower_case=lowercase)
    book = (real_data / "books" / "pg7256-the-gift-of-the-magi.txt").read_text(encoding="utf-8").split("\n")
    texts = [*SENTENCES[:4], SENTENCES[5], *book]  # their tokenizer takes a literal [MASK] for the token
    ours = encode_sentences(build_tokenizer(vocabulary, lowercase), texts)
    assert ours == theirs(texts, add_special_tokens=False)["input_ids"]


def test_special_tokens_in_a_text_are_text_and_the_tokenizer_stays_as_it_was(vocabulary: list[str]) -> None:
    tokenizer = build_tokenizer(vocabulary, lowercase=True)
    ids = special_ids(vocabulary)
    (encoded,) = encode_sentences(tokenizer, ["the [MASK] ship"])
    assert ids.mask not in encoded
    assert tokenizer.decode(encoded) == "the [ mask ] ship"
    assert tokenizer.encode("the [MASK]").ids == [ids.cls, vocabulary.index("the"), ids.mask, ids.sep]


@pytest.mark.parametrize("lowercase", [True, False])
def test_saved_files_load_in_transformers_with_the_same_ids(
    vocabulary: list[str], tmp_path: Path, lowercase: bool
) -> None:
    save_tokenizer(vocabulary, lowercase, tmp_path)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert load_vocabulary(tmp_path / "vocab.txt") == vocabulary
    assert len(theirs) == ours.get_vocab_size() == len(vocabulary)
    for text in SENTENCES:
        assert theirs(text, "a ship")["input_ids"] == ours.encode(text, "a ship").ids
        assert theirs(text, "a ship")["token_type_ids"] == ours.encode(text, "a ship").type_ids
    assert (
        theirs.pad_token_id,
        theirs.unk_token_id,
        theirs.cls_token_id,
        theirs.sep_token_id,
        theirs.mask_token_id,
    ) == (special_ids(vocabulary))


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(VocabularyError, match="not a tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "vocab.txt",
            "\n".join([*SPECIAL_TOKENS, "other"]),
            "tokenizer.json: has another vocabulary than vocab.txt beside",
        ),
        ("tokenizer.json", "{", "tokenizer.json: not a tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json: not JSON"),
        ("tokenizer_config.json", "[" * 100_000, "tokenizer_config.json: not JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: not a JSON object; copy the folder anew"),
    ],
)
def test_a_damaged_file_of_a_tokenizer_is_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    save_tokenizer([*SPECIAL_TOKENS, "word"], True, tmp_path)
    check_files(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(VocabularyError, match=f"{tmp_path}/{message}"):
        check_files(tmp_path)


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
        "import sys, hashlib; from pathlib import Path; from preprocessing.tokenization import train_vocabulary;"
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
