"""The command line of make_shards: what can be asked for, its defaults, and what is refused."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from apache_beam.options.pipeline_options import PipelineOptions

from preprocessing.encoder import Engine
from preprocessing.shards import PairOptions

# Ours alone: the runners that work inside this process (and its worker processes).
EMBEDDED_RUNNERS = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner")
MIN_SEQUENCE_LENGTH = 8
MAX_DUPLICATES = 32767  # as the shard's column holds

EPILOG = """\
example:
  beam run preprocessing/make_shards.py --wikipedia 'enwiki-*.xml.bz2' --books 'books/*.txt' --vocab vocab.txt \\
      --sequence-lengths 128 512 --duplicates 10 --validation-fraction 0.01 --seed 1 --output shards/

The same command again goes on with a job that was interrupted, and does nothing when the job is finished.
Any option of Apache Beam can follow, such as
  --direct_running_mode=multi_processing --direct_num_workers=8    eight worker processes on this machine
  --runner=FlinkRunner --flink_master=HOST:8081                    a Flink cluster
"""


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


@dataclass(frozen=True)
class Arguments:
    """A parsed command line."""

    inputs: dict[str, list[str]]  # source -> paths and globs
    vocabulary: str
    output: str
    overwrite: bool
    encoder: Engine
    options: Options
    beam: list[str]  # options for Beam, the runner among them


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, not the usage and then the error."""

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong and exit with code 2."""
        print(f"{self.prog}: error: {message}; see --help", file=sys.stderr)
        raise SystemExit(2)


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number in a range."""

    def parse(text: str) -> int:
        number = int(text)
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"{number} is not {low} or more" + (f", up to {high}" if high else ""))
        return number

    parse.__name__ = "whole number"  # argparse names it in its message
    return parse


def seed_number(text: str) -> int:
    """An argparse type: a seed."""
    return whole_number(0, 2**63)(text)


def _share(text: str) -> float:
    """An argparse type: a number in [0, 1)."""
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share: 0 or more and less than 1")
    return number


def _language(text: str) -> str:
    if not re.fullmatch(r"[a-z]{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a language code such as en, ko or als")
    return text


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name inputs, which train_vocab has too."""
    inputs = parser.add_argument_group("inputs (at least one; paths or globs, local or of any file system Beam knows)")
    for source, help_text in (
        ("wikipedia", "Wikipedia dumps: pages-articles XML, plain or compressed (bz2, gz, xz)"),
        ("books", "plain text files, one document each"),
    ):
        inputs.add_argument(
            f"--{source}", action="extend", nargs="+", default=[], metavar="GLOB", help=f"{help_text}; repeatable"
        )


def parser() -> OneLineParser:
    """The parser of our own options."""
    parser = OneLineParser(
        prog="make_shards",
        usage="beam run preprocessing/make_shards.py --wikipedia GLOB --books GLOB --vocab FILE --output DIR [options]",
        description="Turn Wikipedia dumps and books into shards of tokenized documents with next-sentence pairs, "
        "for pretraining BERT.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_input_arguments(parser)
    tokens = parser.add_argument_group("tokens")
    tokens.add_argument("--vocab", required=True, metavar="FILE", help="WordPiece vocabulary, one token a line")
    tokens.add_argument("--cased", action="store_true", help="keep case and accents, for a cased vocabulary")
    tokens.add_argument(
        "--language",
        type=_language,
        default="en",
        metavar="CODE",
        help="whose rules split sentences (default: %(default)s)",
    )
    tokens.add_argument(
        "--min-tokens",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="pass over shorter documents (default: %(default)s, which passes over empty ones)",
    )
    tokens.add_argument(
        "--encoder",
        choices=["auto", "nanotoken", "words"],
        default="auto",
        help="what makes the ids: nanotoken, or words and their ids remembered; both give the ids of `tokenizers`, "
        "which is checked (default: nanotoken where it is installed)",
    )
    pairs = parser.add_argument_group("pairs")
    pairs.add_argument(
        "--sequence-lengths",
        type=whole_number(MIN_SEQUENCE_LENGTH),
        nargs="+",
        default=[128, 512],
        metavar="L",
        help="draw pairs for each of these lengths, special tokens included (default: 128 512)",
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
        choices=["uniform", "by-sentence"],
        default="uniform",
        help="draw the document of a random next sentence with equal chances, as BERT did, "
        "or by its number of sentences (default: %(default)s)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="DIR", help="the shard directory")
    output.add_argument(
        "--validation-fraction",
        type=_share,
        default=0.01,
        metavar="F",
        help="share of the documents held out, at least two of four or more; 0 for none (default: %(default)s)",
    )
    output.add_argument(
        "--seed", type=seed_number, default=1, metavar="N", help="of every random choice (default: %(default)s)"
    )
    output.add_argument(
        "--num-shards",
        type=whole_number(1, 99_999),
        metavar="N",
        help="training shards (default: by the size of the inputs, about 64 MB of tokens each)",
    )
    output.add_argument(
        "--overwrite", action="store_true", help="first remove the shards that an earlier job left in DIR"
    )
    return parser


def parse(argv: Sequence[str]) -> Arguments:
    """Parse the command line; what is not ours must be an option that Beam knows.

    Raises:
        SystemExit: with code 2, once the reason is on stderr.
    """
    ours = parser()
    found, rest = ours.parse_known_args(argv)
    inputs = {source: getattr(found, source) for source in ("wikipedia", "books") if getattr(found, source)}
    if not inputs:
        ours.error("there is nothing to read: give --wikipedia or --books")
    if len(set(found.sequence_lengths)) < len(found.sequence_lengths):
        ours.error("--sequence-lengths names a length twice")
    pairs = PairOptions(
        sequence_lengths=tuple(sorted(found.sequence_lengths)),
        duplicates=found.duplicates,
        short_sequence_probability=found.short_sequence_probability,
        negatives=found.negatives,
    )
    options = Options(
        pairs=pairs,
        validation_fraction=found.validation_fraction,
        seed=found.seed,
        lowercase=not found.cased,
        language=found.language,
        min_tokens=found.min_tokens,
        num_shards=found.num_shards,
    )
    beam = _beam_options(ours, rest)
    return Arguments(inputs, found.vocab, found.output, found.overwrite, found.encoder, options, beam)


def _beam_options(ours: OneLineParser, rest: list[str]) -> list[str]:
    """Check the options meant for Beam, and pin the runner.

    Left alone, Beam's default runner may fetch another one from the network and run on that.
    """
    beam = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for group in {str(group): group for group in PipelineOptions.__subclasses__()}.values():
        group._add_argparse_args(beam)
    known, unknown = beam.parse_known_args(rest)
    embedded = known.runner is None or known.runner.rpartition(".")[2] in EMBEDDED_RUNNERS
    if unknown and (embedded or not unknown[0].startswith("--")):
        ours.error(f"unknown option {unknown[0]!r}: neither this program nor Beam has it")
    if known.direct_running_mode == "multi_threading":
        ours.error(
            "--direct_running_mode=multi_threading loses documents now and then (a race in Beam's threaded data "
            "channel); use multi_processing"
        )
    return [*rest, "--runner=FnApiRunner"] if embedded else rest
