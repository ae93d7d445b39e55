"""WordPiece: load and check a vocabulary, and turn sentences into ids.

The door through which the trainer and the evaluation use a vocabulary: it needs `tokenizers` only. Encoding has
google-research/bert's meaning: clean, split off Chinese characters, lower-case and strip accents (uncased models, those
whose words have accents without the latter), split on white space and punctuation, then the longest match first within
each word.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from preprocessing.status import is_file
from preprocessing.storage_errors import UnavailableError, is_refused, unavailable

PAD, UNKNOWN, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNKNOWN, CLS, SEP, MASK)
CONTINUATION = "##"  # begins every piece that does not begin a word
VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
LONGEST_WORD = 100  # in characters; WordPiece takes no part of a longer one
CASE_SHARE = 0.01  # of a vocabulary's entries: with as many that hold letters of a case, it knows that case


class VocabularyError(ValueError):
    """A vocabulary or tokenizer that can't be used. The message names the file and what is wrong with it."""


class SpecialIds(NamedTuple):
    """The ids of the tokens that BERT treats as its own."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int


def parse_vocabulary(text: str, where: str) -> list[str]:
    """The tokens of a vocab.txt, one a line, whose number is the token's id; or of BERT's tokenizer.json.

    Raises:
        VocabularyError: other JSON, empty, an empty line between tokens, a token twice, a special token missing, or ids
            with gaps. ``where`` names the file in the message.
    """
    # Not splitlines(): published vocabularies hold tokens such as U+2028 that it would split.
    tokens = text.replace("\r\n", "\n").removeprefix("\ufeff").rstrip("\n").split("\n")
    if tokens == [""]:
        raise VocabularyError(f"{where}: the vocabulary is empty; it needs one token a line")
    if tokens[0].startswith("{") and SPECIAL_TOKENS[0] not in tokens:
        return _words_of_json(text, where)
    first_line = dict(zip(reversed(tokens), range(len(tokens), 0, -1), strict=True))
    for line, token in enumerate(tokens, start=1):
        if not token:
            raise VocabularyError(f"{where}: line {line} is empty; a vocabulary needs one token a line")
        if first_line[token] != line:
            raise VocabularyError(f"{where}: the token {token!r} is on line {first_line[token]} and again on {line}")
    _check_special_tokens(first_line, where)
    return tokens


def _words_of_json(text: str, where: str) -> list[str]:
    """The tokens of a tokenizer.json, which is all that transformers 5 writes."""
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # `tokenizers` raises bare Exception for whatever is wrong with the content
        raise VocabularyError(
            f"{where}: is JSON, but no tokenizer.json; give that or the vocab.txt beside it, one token a line"
        ) from error
    if not isinstance(tokenizer.model, models.WordPiece):
        raise VocabularyError(f"{where}: a tokenizer of another kind than BERT's WordPiece; give the one of a BERT")
    return _in_order(tokenizer.get_vocab(), where)


def _in_order(ids: Mapping[str, int], where: str) -> list[str]:
    """The tokens of a tokenizer.json, so that a token's place is its id.

    Raises:
        VocabularyError: a special token is missing, ids have gaps, or a token would not be a line of a vocab.txt.
    """
    _check_special_tokens(ids, where)
    words = sorted(ids, key=ids.__getitem__)
    if any(ids[word] != place for place, word in enumerate(words)):
        raise VocabularyError(f"{where}: its ids are not those from 0 to {len(ids) - 1}; give a vocab.txt beside it")
    if broken := [word for word in words if not word or "\n" in word]:
        raise VocabularyError(f"{where}: the token {broken[0]!r} is no line of a vocab.txt; give one beside it")
    return words


def _check_special_tokens(tokens: Collection[str], where: str) -> None:
    for special in SPECIAL_TOKENS:
        if special not in tokens:
            raise VocabularyError(f"{where}: the special token {special} is missing; BERT needs {SPECIAL_TOKENS}")


def vocabulary_text(vocabulary: Sequence[str]) -> str:
    """What parse_vocabulary reads: a vocab.txt."""
    return "\n".join(vocabulary) + "\n"


def load_vocabulary(path: Path | str) -> list[str]:
    """Read and check a vocab.txt; see parse_vocabulary.

    Raises:
        VocabularyError: also when the file is not there or not UTF-8.
        UnavailableError: it can't be read now.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise _unread(path, error, "can't read the vocabulary", "give a vocab.txt") from error
    except UnicodeDecodeError as error:
        raise VocabularyError(f"{path}: not a vocab.txt in UTF-8 ({error.reason} at byte {error.start})") from error
    return parse_vocabulary(text, str(path))


def _unread(path: Path | str, error: OSError, problem: str, advice: str) -> VocabularyError | UnavailableError:
    """What to raise of a file that can't be read, whose problem and the advice are where it is the user's matter."""
    if is_refused(error):
        return VocabularyError(f"{path}: {problem} ({error.strerror}); {advice}")
    return unavailable(path, error.strerror)


def load_words(directory: Path | str) -> list[str]:
    """The tokens of a tokenizer's folder in the order of their ids, from vocab.txt or else from tokenizer.json.

    Words that were added to a tokenizer follow those of vocab.txt: transformers 4 writes them to tokenizer.json alone.

    Raises:
        VocabularyError: it holds neither, or one that is damaged, or whose ids have gaps.
    """
    saved = Path(directory) / TOKENIZER_FILE
    listed = load_vocabulary(path) if is_file(path := Path(directory) / VOCABULARY_FILE) else None
    if listed is not None and not is_file(saved):
        return listed
    tokenizer = load_tokenizer(directory)
    if listed is not None and not _extends(tokenizer, listed):
        return listed
    return _in_order(tokenizer.get_vocab(), str(saved))


def _extends(tokenizer: Tokenizer, words: Sequence[str]) -> bool:
    """Whether a tokenizer has these words, and beyond them those that were added to it later."""
    ids = {word: i for i, word in enumerate(words)}.items()
    return tokenizer.get_vocab(with_added_tokens=False).items() <= ids <= tokenizer.get_vocab().items()


def case_of(vocabulary: Collection[str]) -> Literal["cased", "uncased"] | None:
    """Whether a vocabulary has upper case, of any alphabet; None where it doesn't tell.

    A stray few entries with upper case make it neither. Letters without a counterpart, such as bert-base-uncased's
    U+211D, have no case.
    """
    words = [token for token in vocabulary if not (token.startswith("[") and token.endswith("]"))]
    upper = sum(word != word.lower() for word in words)
    # By title case: Georgian letters have capitals, but no text is written in these.
    lower = sum(any(letter != letter.title() for letter in word) for word in words)
    few = CASE_SHARE * len(words)
    if upper > few:
        return "cased"
    return "uncased" if lower > few and not upper else None


def check_case(tokens: Sequence[str], lowercase: bool, file: str) -> None:
    """See that a vocabulary is of the case that is asked for: shards of the other one look right, and learn badly.

    Raises:
        VocabularyError: it is not. The evaluation would refuse a model that was trained with it.
    """
    case = case_of(tokens)
    if case == "cased" and lowercase:
        raise VocabularyError(f"{file}: has upper-case letters, so it is a cased vocabulary; add --cased")
    if case == "uncased" and not lowercase:
        raise VocabularyError(f"{file}: has no upper-case letter, so it is an uncased vocabulary; leave --cased out")


def _strip_accents(vocabulary: Sequence[str], lowercase: bool) -> bool | None:
    """What tokenizers are told of accents: None, as of case, or False for an uncased vocabulary of words with them.

    Some published ones are, Spanish and German ones among them; in a text without accents none of these words occurs.
    """
    strip = normalizers.BertNormalizer(False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    beyond_ascii = (token for token in vocabulary if lowercase and not token.isascii())
    accented = sum(strip.normalize_str(token) != token for token in beyond_ascii)
    return False if accented > CASE_SHARE * len(vocabulary) else None


def special_ids(vocabulary: Sequence[str]) -> SpecialIds:
    """The ids of the special tokens in a checked vocabulary."""
    return SpecialIds(*(vocabulary.index(token) for token in SPECIAL_TOKENS))


def build_tokenizer(vocabulary: Sequence[str], lowercase: bool) -> Tokenizer:
    """A `tokenizers` tokenizer with BERT's normalisation, word splitting and WordPiece.

    Args:
        vocabulary: tokens in the order of their ids, as load_vocabulary gives them.
        lowercase: uncased model: lower-case and, unless its words have accents, strip them.
    """
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=LONGEST_WORD))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=_strip_accents(vocabulary, lowercase)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = frame(ids)
    return tokenizer


def frame(ids: Mapping[str, int]) -> processors.TemplateProcessing:
    """What a tokenizer of BERT puts around a text, or a pair of texts, by the ids of its tokens."""
    return processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
    )


def encode_sentences(tokenizer: Tokenizer, sentences: Sequence[str]) -> list[list[int]]:
    """The ids of each sentence, without special tokens: a literal "[MASK]" in a corpus is three pieces of text."""
    recognised = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True  # means: as ordinary text
    try:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
    finally:
        tokenizer.encode_special_tokens = recognised


def cut(word: str, ids: Mapping[str, int]) -> list[int]:
    """The ids of the pieces that WordPiece cuts an entry of a vocabulary into; none where it knows no piece."""
    prefix = CONTINUATION if word.startswith(CONTINUATION) else ""
    rest, found = word.removeprefix(CONTINUATION), []
    while rest:
        length = next((n for n in range(len(rest), 0, -1) if prefix + rest[:n] in ids), 0)
        if not length:
            return []
        found.append(ids[prefix + rest[:length]])
        prefix, rest = CONTINUATION, rest[length:]
    return found


def tokenizer_files(vocabulary: Sequence[str], lowercase: bool) -> dict[str, bytes]:
    """The files that Hugging Face's AutoTokenizer loads as a BERT tokenizer: name -> content."""
    config = {
        "backend": "tokenizers",
        "cls_token": CLS,
        "do_lower_case": lowercase,
        "mask_token": MASK,
        "pad_token": PAD,
        "sep_token": SEP,
        "strip_accents": _strip_accents(vocabulary, lowercase),
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
        "unk_token": UNKNOWN,
    }
    return {
        VOCABULARY_FILE: vocabulary_text(vocabulary).encode(),
        TOKENIZER_FILE: (build_tokenizer(vocabulary, lowercase).to_str(pretty=True) + "\n").encode(),
        CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode(),
    }


def load_tokenizer(directory: Path | str) -> Tokenizer:
    """The tokenizer of a directory that holds tokenizer_files.

    Raises:
        VocabularyError: the directory holds no tokenizer.json, or one that `tokenizers` can't read.
        UnavailableError: it can't be read now.
    """
    path, advice = Path(directory) / TOKENIZER_FILE, "give a directory that holds a saved tokenizer"
    try:
        if not is_file(path):
            raise VocabularyError(f"{path}: no such file; {advice}")
        content = path.read_bytes()
    except OSError as error:
        raise _unread(path, error, "can't read the tokenizer", advice) from error
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # `tokenizers` raises bare Exception for whatever is wrong with the content
        raise VocabularyError(f"{path}: not a tokenizer ({error})") from error


def load_settings(directory: Path | str) -> dict[str, Any]:
    """What transformers is told of a tokenizer; nothing where its folder has no tokenizer_config.json.

    Raises:
        VocabularyError: the file is damaged.
    """
    path = Path(directory) / CONFIG_FILE
    if not is_file(path):
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise VocabularyError(f"{path}: not JSON ({error}); copy the folder anew") from error
    if not isinstance(settings, dict):
        raise VocabularyError(f"{path}: not a JSON object; copy the folder anew")
    return settings


def check_files(directory: Path | str, *, added: bool = False) -> None:
    """See that those of a tokenizer's files that are there are whole, and of one vocabulary.

    Args:
        directory: holds them.
        added: tokenizer.json may have words that were added to those of vocab.txt; see load_words.

    Raises:
        VocabularyError: one is damaged, or vocab.txt and tokenizer.json have other words.
    """
    listed, saved = Path(directory) / VOCABULARY_FILE, Path(directory) / TOKENIZER_FILE
    words = load_vocabulary(listed) if is_file(listed) else None
    tokenizer = load_tokenizer(directory) if is_file(saved) else None
    if words and tokenizer and not (_extends(tokenizer, words) and (added or len(words) == tokenizer.get_vocab_size())):
        raise VocabularyError(f"{saved}: has another vocabulary than {listed.name} beside it; copy the folder anew")
    load_settings(directory)
