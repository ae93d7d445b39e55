"""The command line of make_shards: what can be asked for, its defaults, and what is refused."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import get_args

from preprocessing.beam_options import check_beam_options
from preprocessing.command_line import OneLineParser, number, whole_number
from preprocessing.encoder import Engine
from preprocessing.fingerprints import RepeatRule
from preprocessing.nsp import Negatives
from preprocessing.schema import MAX_SEQUENCE_LENGTH, MIN_SEQUENCE_LENGTH
from preprocessing.shards import PairOptions
from preprocessing.shared_options import (
    MAX_VOCABULARY,
    SAMPLE_BYTES,
    add_input_arguments,
    add_sample_bytes,
    inputs_of,
    path,
    read_options,
    refuse_empty,
    utf8,
)
from preprocessing.sources import ReadOptions

# Countries' codes that are taken for their languages' and that no text is in, though kr is Kanuri's.
_COUNTRIES = {
    "cn": "zh",
    "cz": "cs",
    "dk": "da",
    "ge": "de, or ka",
    "gr": "el",
    "ir": "fa",
    "jp": "ja",
    "kr": "ko",
    "ua": "uk",
    "us": "en",
    "vn": "vi",
}
# What others call it: google-research/bert, NVIDIA's scripts and LDDL, Hugging Face's run_mlm.py, and common tools.
# docs/migrating.md has more.
_OTHERS_NAMES = {
    **dict.fromkeys(("--input_file", "--input_files"), "--books FILE --books-format google"),
    "--text": "--books",
    "--train_file": "--books, --jsonl or --parquet",
    "--dataset_name": "--parquet or --jsonl, of files that the data set was saved to",
    **dict.fromkeys(("--output_file", "--output_dir", "--sink"), "--output"),
    "--overwrite_output_dir": "--overwrite",
    **dict.fromkeys(("--vocab_file", "--tokenizer_name"), "--vocab FILE"),
    "--vocab_size": "--train-vocab N",
    **dict.fromkeys(("--max_seq_length", "--target_seq_length"), "--sequence-lengths"),
    "--dupe_factor": "--duplicates",
    "--random_seed": "--seed",
    "--short_seq_prob": "--short-sequence-probability",
    "--do_lower_case": "done without being asked for; --cased keeps case and accents",
    **dict.fromkeys(("--n_training_shards", "--num_blocks"), "--num-shards"),
    **dict.fromkeys(
        ("--validation_file", "--validation_split_percentage", "--fraction_test_set", "--n_test_shards"),
        "--validation-fraction F, a share of the documents",
    ),
    **dict.fromkeys(
        ("--workers", "--num_proc", "--jobs", "--n_processes", "--preprocessing_num_workers"), "--direct_num_workers"
    ),
    **dict.fromkeys(
        ("--max_predictions_per_seq", "--masked_lm_prob", "--mlm_probability", "--do_whole_word_mask", "--masking"),
        "the training's, which draws masks anew each time; see docs/migrating.md",
    ),
}
LINE_CHARACTERS = 100  # a line of fewer may repeat
MAX_DUPLICATES = 32767  # as the shard's column holds

EPILOG = """\
for example:
  beam run preprocessing/make_shards.py --books 'notes/**/*.txt' --train-vocab 8192 --output shards/
  beam run preprocessing/make_shards.py --wikipedia 'enwiki-*.xml.bz2' --books 'books/*.txt' --vocab vocab.txt \\
      --sequence-lengths 128 512 --duplicates 10 --validation-fraction 0.01 --seed 1 --output shards/

The same command again goes on with a job that was interrupted, and does nothing when the job is finished.
`python -m preprocessing.inspect shards/` shows what was made; docs/preprocessing.md tells more of inputs and options.
Any option of Apache Beam can follow, such as
  --direct_running_mode=multi_processing --direct_num_workers=8    eight worker processes on this machine
  --runner=FlinkRunner --flink_master=HOST:8081                    a Flink cluster
"""


@dataclass(frozen=True)
class VocabularyRule:
    """How a vocabulary is trained."""

    size: int
    sample_bytes: int


@dataclass(frozen=True)
class Options:
    """What decides the contents of the shards, beside the inputs and the vocabulary."""

    pairs: PairOptions
    validation_fraction: float
    seed: int
    lowercase: bool
    language: str
    min_tokens: int
    num_shards: int | None
    repeats: RepeatRule
    read: ReadOptions
    train_vocabulary: VocabularyRule | None  # None: a vocabulary is given


@dataclass(frozen=True)
class Arguments:
    """A parsed command line."""

    inputs: dict[str, list[str]]  # source -> paths and globs
    vocabulary: str | None  # None: it is trained
    output: str
    overwrite: bool
    encoder: Engine
    patience: float  # seconds for one document, 0 for any time
    options: Options
    contamination: str | None  # a folder of files of a benchmark
    beam: list[str]  # options for Beam, the runner among them


_length = whole_number(MIN_SEQUENCE_LENGTH, MAX_SEQUENCE_LENGTH)


def _lengths(text: str) -> list[int]:
    """An argparse type: a sequence length, or several with commas between them; in `128, 512` one ends the word."""
    return [_length(part) for part in text.removesuffix(",").split(",")]


_REPETITIONS = ("documents", "lines", "none")


def _repetitions(text: str) -> list[str]:
    """An argparse type: what repeats, or several with commas between them, as lengths may have them."""
    found = text.removesuffix(",").split(",")
    if unknown := [word for word in found if word not in _REPETITIONS]:
        raise argparse.ArgumentTypeError(f"invalid choice: {unknown[0]!r} (choose from {', '.join(_REPETITIONS)})")
    return found


_share = number("a share: a number from 0 to less than 1", lambda share: 0 <= share < 1)
# Below, clusters of near duplicates grow together by chance; above, datasketch finds no bands.
_threshold = number("a similarity: a number from 0.5 to 0.99", lambda similarity: 0.5 <= similarity <= 0.99)


def _output(text: str) -> str:
    """An argparse type: a path that Arrow can open, where Beam can list what lies below it and make folders."""
    text = path(text)
    if text.startswith("hdfs://"):
        raise argparse.ArgumentTypeError(
            f"{text!r}: Beam reads from HDFS, but shards can't be made there; "
            "name a folder that all workers see or an object store, and copy them"
        )
    return utf8(text)


def _language(text: str) -> str:
    """An argparse type: the code of a language; one that the splitter doesn't know has English's rules."""
    if meant := _COUNTRIES.get(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a country, not a language; did you mean {meant}?")
    if not re.fullmatch(r"[a-z]{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a language code such as en, ko or als")
    return text


def parser() -> OneLineParser:
    """The parser of our own options."""
    parser = OneLineParser(
        prog="make_shards",
        usage="beam run preprocessing/make_shards.py INPUTS (--vocab FILE | --train-vocab N) --output DIR [options]",
        description="Turn Wikipedia dumps, books and other texts into shards of tokenized documents\n"
        "with next-sentence pairs, for pretraining BERT.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_input_arguments(parser)
    _add_tokens(parser)
    _add_repeats(parser)
    _add_pairs(parser)
    _add_output(parser)
    return parser


def _add_tokens(parser: argparse.ArgumentParser) -> None:
    """The options that say how text becomes tokens."""
    tokens = parser.add_argument_group("tokens")
    vocabulary = tokens.add_mutually_exclusive_group(required=True)
    vocabulary.add_argument(
        "--vocab",
        type=path,
        metavar="FILE",
        help="a WordPiece vocabulary, a token a line, such as bert-base-uncased's vocab.txt, or a tokenizer.json",
    )
    vocabulary.add_argument(
        "--train-vocab",
        type=whole_number(1, MAX_VOCABULARY),
        metavar="N",
        help="or first train one of N entries on the inputs",
    )
    add_sample_bytes(tokens, "--vocab-sample-bytes")
    tokens.add_argument(
        "--cased",
        action="store_true",
        help="keep case and accents, for a cased vocabulary (default: lower case, no accents)",
    )
    tokens.add_argument(
        "--language",
        type=_language,
        default="en",
        metavar="CODE",
        help="of the language whose rules split sentences, such as de or ko (default: %(default)s)",
    )
    tokens.add_argument(
        "--min-tokens",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="pass over documents of fewer tokens (default: %(default)s, which passes over empty ones)",
    )
    tokens.add_argument(
        "--encoder",
        choices=get_args(Engine),
        default="auto",
        help="what makes the ids: nanotoken, or words and their ids remembered; both give the ids of `tokenizers`, "
        "which is checked (default: nanotoken where it is installed)",
    )


def _add_repeats(parser: argparse.ArgumentParser) -> None:
    """The options that say which repetitions are dropped."""
    repeats = parser.add_argument_group("what is dropped because the corpus has it twice")
    repeats.add_argument(
        "--deduplicate",
        type=_repetitions,
        nargs="+",
        default=[["documents", "lines"]],
        metavar="WHAT",
        help="documents with the text of another one, lines (paragraphs) that are elsewhere too, or none; the copy in "
        "the document of the smallest id stays (default: documents lines)",
    )
    repeats.add_argument(
        "--min-repeated-line",
        type=whole_number(1),
        metavar="N",
        help=f"a line of fewer characters may repeat (default: {LINE_CHARACTERS})",
    )
    repeats.add_argument(
        "--near-duplicates",
        type=_threshold,
        metavar="SIMILARITY",
        help="drop documents too that share this part or more of their five-word sequences with another one, as "
        "MinHash estimates it; 0.8 is usual (default: they stay)",
    )
    repeats.add_argument(
        "--contamination",
        type=path,
        metavar="DIR",
        help="tell what share of a benchmark's texts is in the corpus: those of the .txt, .tsv, .json and .jsonl files "
        "below DIR; nothing is dropped for it",
    )


def _add_pairs(parser: argparse.ArgumentParser) -> None:
    """The options that say how pairs are drawn."""
    pairs = parser.add_argument_group("pairs")
    pairs.add_argument(
        "--sequence-lengths",
        type=_lengths,
        nargs="+",
        default=[[128, 512]],
        metavar="L",
        help="draw pairs for each of these lengths in tokens, special ones included (default: 128 512)",
    )
    pairs.add_argument(
        "--duplicates",
        type=whole_number(1, MAX_DUPLICATES),
        default=10,
        metavar="N",
        help="passes over every document, each with other pairs (default: %(default)s)",
    )
    pairs.add_argument(
        "--short-sequence-probability",
        type=_share,
        default=0.1,
        metavar="P",
        help="share of passes that aim at a random shorter length (default: %(default)s)",
    )
    pairs.add_argument(
        "--negatives",
        choices=get_args(Negatives),
        help="draw the document of a random next sentence with equal chances, as BERT did, "
        "or by its number of sentences (default: uniform)",
    )
    pairs.add_argument(
        "--no-nsp",
        action="store_true",
        help="draw single segments with no next sentence, for training without that task",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    """The options of the shards as a whole, and of the job that writes them."""
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, type=_output, metavar="DIR", help="the shard directory to write")
    output.add_argument(
        "--validation-fraction",
        type=_share,
        default=0.01,
        metavar="F",
        help="share of the documents held out, at least two of four or more; 0 for none (default: %(default)s)",
    )
    output.add_argument(
        "--seed", type=whole_number(0), default=1, metavar="N", help="of every random choice (default: %(default)s)"
    )
    output.add_argument(
        "--num-shards",
        type=whole_number(1, 99_999),
        metavar="N",
        help="training shards (default: by the size of the inputs, about 64 MB of tokens each; from 2,000 on larger)",
    )
    output.add_argument(
        "--document-timeout",
        type=whole_number(0),
        default=600,
        metavar="SECONDS",
        help="end the job and name the document when one takes longer, 0 for never (default: %(default)s)",
    )
    output.add_argument(
        "--overwrite", action="store_true", help="first remove the shards that an earlier job left in DIR"
    )


def parse(argv: Sequence[str]) -> Arguments:
    """Parse the command line; what is not ours must be an option that Beam knows.

    Raises:
        SystemExit: with code 2, once the reason is on stderr.
    """
    ours = parser()
    # A missing option is told after these; all others are Beam's, or of a runner's job server, which alone knows them.
    ours.refuse_names_of_others(argv, _OTHERS_NAMES)
    ours.refuse_misspelt(argv)
    found, rest = ours.parse_known_args(argv)
    refuse_empty(ours, found)
    inputs = inputs_of(ours, found)
    lengths = sorted(chain.from_iterable(found.sequence_lengths))
    if len(set(lengths)) < len(lengths):
        ours.error("--sequence-lengths names a length twice")
    if found.no_nsp and found.negatives:
        ours.error("--negatives says how random next sentences are drawn, and --no-nsp draws none; leave one out")
    if found.vocab and found.vocab_sample_bytes:
        ours.error("--vocab-sample-bytes is for --train-vocab, and --vocab names a vocabulary; leave one out")
    pairs = PairOptions(
        sequence_lengths=tuple(lengths),
        duplicates=found.duplicates,
        short_sequence_probability=found.short_sequence_probability,
        negatives=found.negatives or "uniform",
        next_sentence=not found.no_nsp,
    )
    options = Options(
        pairs=pairs,
        validation_fraction=found.validation_fraction,
        seed=found.seed,
        lowercase=not found.cased,
        language=found.language,
        min_tokens=found.min_tokens,
        num_shards=found.num_shards,
        repeats=_repeat_rule(ours, found),
        read=read_options(found),
        train_vocabulary=VocabularyRule(found.train_vocab, found.vocab_sample_bytes or SAMPLE_BYTES)
        if found.train_vocab
        else None,
    )
    return Arguments(
        inputs=inputs,
        vocabulary=found.vocab,
        output=found.output,
        overwrite=found.overwrite,
        encoder=found.encoder,
        patience=found.document_timeout,
        options=options,
        contamination=found.contamination,
        beam=check_beam_options(ours, rest),
    )


def _repeat_rule(ours: OneLineParser, found: argparse.Namespace) -> RepeatRule:
    asked = set(chain.from_iterable(found.deduplicate))
    if len(asked) > 1 and "none" in asked:
        ours.error("--deduplicate none can't be combined with other values")
    if "lines" not in asked and found.min_repeated_line:
        ours.error("--min-repeated-line is for --deduplicate lines, which is not asked for; leave it out")
    return RepeatRule(
        documents="documents" in asked,
        lines="lines" in asked,
        line_characters=found.min_repeated_line or LINE_CHARACTERS,
        near_duplicates=found.near_duplicates,
    )
