from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, BertTokenizerFast

from preprocessing.encoder import Encoder
from preprocessing.storage_errors import UnavailableError
from preprocessing.tokenization import (
    SPECIAL_TOKENS,
    SpecialIds,
    VocabularyError,
    build_tokenizer,
    case_of,
    check_case,
    check_files,
    cut,
    encode_sentences,
    load_tokenizer,
    load_vocabulary,
    load_words,
    parse_vocabulary,
    special_ids,
)
from tests.failing import fail_on
from tests.trainer.shard_factory import save_tokenizer

SENTENCES = [
    "The whale's ship sailed -- under the Sea!",
    "Señor Café never slept.",
    "한국어 문장, and 中文字.",
    "a\u00a0b\u200bc\u00ad d\ttab",
    "unaffable [MASK] [SEP]",
    "x" * 150,
    "x" * 100,
]


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
    assert "v.txt: the vocabulary is empty" in vocabulary_error("")
    assert "line 1 is empty" in vocabulary_error("\n" + "\n".join(SPECIAL_TOKENS))
    for indent in (None, 2):  # a vocab.json
        assert "v.txt: is JSON, but no tokenizer.json; give" in vocabulary_error(
            json.dumps({"[PAD]": 0}, indent=indent)
        )
    assert parse_vocabulary("\n".join(["{", *SPECIAL_TOKENS]), "v.txt")[0] == "{"
    assert "line 6 is empty" in vocabulary_error("\n".join(SPECIAL_TOKENS) + "\n\na\n")
    assert "'a' is on line 6 and again on 8" in vocabulary_error("\n".join([*SPECIAL_TOKENS, "a", "b", "a"]))
    with pytest.raises(VocabularyError, match="No such file"):
        load_vocabulary(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VocabularyError, match="UTF-8"):
        load_vocabulary(tmp_path / "binary")


def test_a_vocabulary_is_that_of_a_tokenizer_too_with_the_words_that_were_added_to_it() -> None:
    tokens = [*SPECIAL_TOKENS, "a", "\u2028", "##b"]
    tokenizer = build_tokenizer(tokens, lowercase=True)
    assert parse_vocabulary(tokenizer.to_str(pretty=True), "tokenizer.json") == tokens
    tokenizer.add_tokens(["added"])
    assert parse_vocabulary(tokenizer.to_str(), "tokenizer.json") == [*tokens, "added"]
    for words, told in (
        ({word: i for i, word in enumerate(tokens[:4])}, r"v.txt: the special token \[MASK\] is missing"),
        ({word: 2 * i for i, word in enumerate(tokens)}, "v.txt: its ids are not those from 0 to 7"),
        ({word: i for i, word in enumerate([*tokens, "a\nb"])}, r"v.txt: the token 'a\\nb' is no line of a vocab.txt"),
    ):
        assert re.match(told, vocabulary_error(Tokenizer(models.WordPiece(words, unk_token="[UNK]")).to_str()))
    assert "v.txt: a tokenizer of another kind" in vocabulary_error(Tokenizer(models.Unigram()).to_str())


def test_words_that_transformers_4_added_follow_those_of_the_vocabulary(tmp_path: Path) -> None:
    """It writes them to tokenizer.json, and not to vocab.txt."""
    tokens = [*SPECIAL_TOKENS, "word"]
    save_tokenizer(tokens, True, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.add_tokens(["added", "later"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_words(tmp_path) == [*tokens, "added", "later"]
    check_files(tmp_path, added=True)
    with pytest.raises(VocabularyError, match="has another vocabulary than vocab"):
        check_files(tmp_path)  # as shards are made with those of vocab.txt alone
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "other"]))
    with pytest.raises(VocabularyError, match="has another vocabulary than vocab"):
        check_files(tmp_path, added=True)


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
    texts = [*SENTENCES[:4], *SENTENCES[5:], *book]  # their tokenizer takes a literal [MASK] for the token
    ours = encode_sentences(build_tokenizer(vocabulary, lowercase), texts)
    assert ours == theirs(texts, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("words", "strip_accents"), [
    (["el", "niño", "según", "sen", "cafe"], False), (["el", "nino", "segun", "senor", "cafe"], None),
])  # fmt: skip
def test_an_uncased_vocabulary_of_words_with_accents_keeps_those_of_a_text(
    tmp_path: Path, words: list[str], strip_accents: bool | None
) -> None:
    """As of published models with strip_accents = false, of which transformers is told in shards and exports too."""
    vocabulary, texts = [*SPECIAL_TOKENS, *words], ["El Niño según SEGÚN café", "Señor Cafe nino segun"]
    save_tokenizer(vocabulary, True, tmp_path)
    published = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=True, strip_accents=strip_accents)
    theirs = published(texts, add_special_tokens=False)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path)(texts, add_special_tokens=False)["input_ids"] == theirs
    assert encode_sentences(load_tokenizer(tmp_path), texts) == theirs
    assert Encoder(vocabulary, lowercase=True)(texts).ids.tolist() == [i for of_text in theirs for i in of_text]
    assert (vocabulary.index(words[1]) in theirs[0], vocabulary.index(words[2]) in theirs[0]) == (True, True)


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


@pytest.mark.parametrize("load", [load_vocabulary, load_tokenizer])
@pytest.mark.parametrize(
    ("number", "kind", "told"),
    [
        (errno.ESTALE, UnavailableError, r"can't be read now \(Stale file handle\); give the same"),
        (errno.EACCES, VocabularyError, r"can't read the (vocabulary|tokenizer) \(Permission denied\); give a"),
    ],
)
def test_storage_that_fails_is_told_from_a_file_that_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[Path], object],
    number: int, kind: type[Exception], told: str,
) -> None:  # fmt: skip
    save_tokenizer([*SPECIAL_TOKENS, "word"], True, tmp_path)
    fail_on(monkeypatch, Path, "open", number=number)
    with pytest.raises(kind, match=rf"^{tmp_path}/\S+: {told}"):
        load(tmp_path / "vocab.txt" if load is load_vocabulary else tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "vocab.txt",
            "\n".join([*SPECIAL_TOKENS, "other"]),
            "tokenizer.json: has another vocabulary than vocab.txt beside",
        ),
        (
            "vocab.txt",
            "\n".join(["word", *SPECIAL_TOKENS]),
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


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json", "tokenizer_config.json"])
def test_what_a_tokenizer_lacks_is_no_damage(tmp_path: Path, file: str) -> None:
    save_tokenizer([*SPECIAL_TOKENS, "word"], True, tmp_path)
    (tmp_path / file).unlink()
    check_files(tmp_path)


def test_a_vocabulary_that_tells_no_case_is_of_either() -> None:
    korean = [*SPECIAL_TOKENS, "\ud55c\uad6d\uc5b4"]
    for lowercase in (True, False):
        check_case(korean, lowercase, "v.txt")


def test_a_word_is_cut_into_the_longest_pieces() -> None:
    tokens = ["##", "cat", "card", "##io", "##gram", "the", "##s", "##g"]
    ids = {word: number for number, word in enumerate(tokens)}
    assert cut("cardiogram", ids) == [2, 3, 4]
    assert cut("##grams", ids) == [4, 6]
    assert cut("心", ids) == []
    assert cut("catx", ids) == []
    assert cut("##", ids) == []


@pytest.mark.parametrize(("file", "lowercase"), [("uncased", True), ("multilingual-cased", False)])
def test_words_are_cut_as_by_the_tokenizer(real_data: Path, file: str, lowercase: bool) -> None:
    tokens = load_vocabulary(real_data / "vocab" / f"bert-base-{file}-vocab.txt")
    tokenizer, ids = build_tokenizer(tokens, lowercase), {word: number for number, word in enumerate(tokens)}
    text = (real_data / "books" / "pg1155-the-secret-adversary.txt").read_text(encoding="utf-8")[:200_000]
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]
    expected = encode_sentences(tokenizer, words)
    assert [cut(word, ids) or [ids["[UNK]"]] for word in words] == expected
