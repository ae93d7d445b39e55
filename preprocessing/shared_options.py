"""What the command lines of make_shards and train_vocab have in common: the inputs, and the text for a vocabulary."""

from __future__ import annotations

import argparse
import os

from preprocessing.command_line import whole_number
from preprocessing.sources import DEFAULTS, Columns, ReadOptions
from preprocessing.sources.registry import SOURCES

MAX_VOCABULARY = 10_000_000  # entries of one that is trained; memory for them is taken before they are found
SAMPLE_BYTES = 200_000_000  # of text to train a vocabulary on


def path(text: str) -> str:
    """An argparse type: a path or a glob, in which `~` is the user's home: within quotation marks the shell leaves it.

    Elsewhere than at the beginning it is a character like any other.
    """
    if text.startswith("file://"):
        raise argparse.ArgumentTypeError(f"{text!r} is a file of this machine; give its path, without file://")
    return os.path.expanduser(text)  # noqa: PTH111 - Path takes the slashes out of a URL


def utf8(text: str) -> str:
    """An argparse type: what can be written down."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from error
    return text


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name inputs, and say how they are read."""
    inputs = parser.add_argument_group(
        "inputs",
        "At least one: paths, or globs in quotation marks, with **/ for folders at any depth, local or of any\n"
        "file system Beam knows, such as s3://. All but Parquet may be compressed with bzip2, gzip, xz or Zstandard.",
    )
    for source, its in SOURCES.items():
        inputs.add_argument(
            f"--{source}",
            type=path,
            action="extend",
            nargs="+",
            default=[],
            metavar="GLOB",
            help=f"{its.help}; repeatable",
        )
    inputs.add_argument(
        "--books-format",
        choices=["file", "google"],
        help="a file is a document, or google-research/bert's input: a sentence a line, a blank line between documents "
        "(default: file)",
    )
    for source, its in SOURCES.items():
        for content in ("text", "title") if its.named else ():
            inputs.add_argument(
                f"--{source}-{content}-{its.named}",
                type=utf8,
                metavar="NAME",
                help=f"the {its.named} that holds a document's {content} (default: {content})",
            )
    inputs.add_argument(
        "--on-error",
        choices=["fail", "skip"],
        default="fail",
        help="what is damaged in an input is an error, or is passed over, as the manifest of shards then tells "
        "(default: %(default)s)",
    )


def refuse_empty(ours: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """End where a word is empty, as a shell's variable that is not set: a path would be the current folder."""
    for name, value in vars(found).items():
        if value == "" or (isinstance(value, list) and "" in value):
            ours.error(f"--{name.replace('_', '-')} is empty")


def inputs_of(ours: argparse.ArgumentParser, found: argparse.Namespace) -> dict[str, list[str]]:
    """Of a parsed command line, the inputs: source -> paths and globs."""
    inputs = {source: getattr(found, source) for source in SOURCES if getattr(found, source)}
    if not inputs:
        ours.error(f"there is nothing to read: give --{', --'.join(SOURCES)}")
    for option in vars(found):
        source = option.partition("_")[0]
        if source in SOURCES and source not in inputs and getattr(found, option):
            ours.error(f"--{option.replace('_', '-')} says how --{source} is read, which is not given; leave it out")
    return inputs


def read_options(found: argparse.Namespace) -> ReadOptions:
    """Of a parsed command line, what it says about reading."""
    columns = {source: _columns(found, source, its.named) for source, its in SOURCES.items() if its.named}
    return ReadOptions(books_format=found.books_format or DEFAULTS.books_format, on_error=found.on_error, **columns)


def _columns(found: argparse.Namespace, source: str, what: str) -> Columns:
    text, title = (getattr(found, f"{source}_{content}_{what}") for content in ("text", "title"))
    return Columns(text or Columns.text, title or Columns.title)


def add_sample_bytes(group: argparse._ArgumentGroup, option: str) -> None:
    """The option that bounds the text a vocabulary is trained on."""
    group.add_argument(
        option,
        type=whole_number(1),
        metavar="N",
        help=f"train on about so many bytes of text, drawn from all documents (default: {SAMPLE_BYTES})",
    )
