"""Train a WordPiece vocabulary on a sample of a corpus, or extend a published one: the command.

    python -m preprocessing.train_vocab --wikipedia 'enwiki-*.xml.bz2' --size 30522 --output vocab.txt
    python -m preprocessing.train_vocab --books 'notes/*.txt' --extend base.txt --size 32768 --output vocab.txt

The sample and the vocabulary depend on the documents and the seed only, not on the order of files or on chance.
"""

from __future__ import annotations

import sys
from pathlib import Path

# As in make_shards.py: run by its path, this would take our inspect.py for the standard library's.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import logging
from collections.abc import Sequence
from itertools import chain

from preprocessing.extras import needs
from preprocessing.status import exists, is_dir, is_file

if __name__ == "__main__":  # before Beam is imported, which warns of Google's client libraries, wanted or not
    logging.getLogger().setLevel(logging.ERROR)
with needs("preprocess"):
    from preprocessing import files
    from preprocessing.command_line import OneLineParser, whole_number
    from preprocessing.inputs import find_inputs, located, units_of
    from preprocessing.interruption import end_when_interrupted
    from preprocessing.reading import read_inputs
    from preprocessing.sampling import sample_texts
    from preprocessing.shared_options import (
        MAX_VOCABULARY,
        SAMPLE_BYTES,
        add_input_arguments,
        add_sample_bytes,
        inputs_of,
        path,
        read_options,
        refuse_empty,
    )
    from preprocessing.sources import SourceError, StorageError
    from preprocessing.storage_errors import UnavailableError, exit_code, reason
    from preprocessing.terminal import counted, in_line, show, tell_error
    from preprocessing.tokenization import (
        SPECIAL_TOKENS,
        VocabularyError,
        check_case,
        load_vocabulary,
        vocabulary_text,
    )
    from preprocessing.vocabulary import extend_vocabulary, train_vocabulary


SIZE = 30522  # as that of bert-base-uncased
EPILOG = """\
for example:
  python -m preprocessing.train_vocab --wikipedia 'enwiki-*.xml.bz2' --books 'books/*.txt' --output vocab.txt
  python -m preprocessing.train_vocab --books 'notes/**/*.txt' --extend base.txt --size 32768 --output vocab.txt
"""


def parser() -> OneLineParser:
    """The parser of the command line."""
    parser = OneLineParser(
        prog="train_vocab",
        usage="python -m preprocessing.train_vocab INPUTS --output FILE [options]",
        description="Train a WordPiece vocabulary on a sample of a corpus, or extend one.\n"
        "The same corpus gives the same vocabulary.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_input_arguments(parser)
    options = parser.add_argument_group("vocabulary")
    options.add_argument(
        "--size",
        type=whole_number(1, MAX_VOCABULARY),
        metavar="N",
        help=f"entries wanted (default: {SIZE}); with --extend it must be given, and counts the entries that are kept",
    )
    options.add_argument(
        "--extend",
        type=path,
        metavar="VOCAB",
        help="keep the entries of this vocab.txt, with their ids, and add words of the inputs that it cuts up",
    )
    options.add_argument("--cased", action="store_true", help="keep case and accents (default: lower case, no accents)")
    add_sample_bytes(options, "--sample-bytes")
    options.add_argument(
        "--seed", type=whole_number(0), default=1, metavar="N", help="of the sample (default: %(default)s)"
    )
    options.add_argument(
        "--overwrite", action="store_true", help="replace a FILE that is there and holds something else"
    )
    options.add_argument("--output", required=True, type=path, metavar="FILE", help="the vocab.txt to write")
    return parser


def run(argv: Sequence[str]) -> None:
    """Read, sample, train, write; see --help.

    Raises:
        SourceError: an input that is not there or is damaged.
        StorageError: an input or an output whose storage fails.
        VocabularyError: too little text, too small a size, or a vocabulary that can't be written.
    """
    ours = parser()
    found = ours.parse_args(argv)
    refuse_empty(ours, found)
    files.set_options()
    output = files.absolute(found.output)
    is_there = _check_output(ours, found.output, output)
    given = _given(ours, found) if found.extend is not None else []
    size = found.size or SIZE
    options = read_options(found)

    def note(text: str) -> None:
        print(in_line(text), file=sys.stderr)

    inputs = find_inputs(inputs_of(ours, found), note, options=options)
    read = [*(file.path for file in inputs), *([files.absolute(found.extend)] if given else [])]
    if any(files.is_same(output, path) for path in read):
        ours.error(f"--output {found.output} is one of the inputs; give the vocabulary another name")
    other = f"--output {found.output} is there and holds something else; use another name, or --overwrite to replace it"
    guarded = is_there and not found.overwrite
    if guarded and not files.begins_with(output, vocabulary_text(given or SPECIAL_TOKENS).encode()):
        ours.error(other)
    # In the parts that a job reads: of what is damaged the same is lost, and tables are read in no other way.
    units = located(units_of(inputs, options), note)
    documents = read_inputs(chain.from_iterable(unit.inputs for unit in units), options)
    texts = sample_texts(documents, found.sample_bytes or SAMPLE_BYTES, found.seed)
    if given:
        vocabulary, before, after = extend_vocabulary(given, texts, size, lowercase=not found.cased)
        new = f", {len(vocabulary) - len(given):,} of them new"
        gain = f", whose words take {after:.3f} tokens each, {before:.3f} before"
    else:
        vocabulary, new, gain = train_vocabulary(texts, size, lowercase=not found.cased), "", ""
    text = vocabulary_text(vocabulary)
    written = text.encode()
    if guarded and not (files.size(output) == len(written) and files.begins_with(output, written)):
        ours.error(other)
    try:
        files.write_text(output, text, output.rpartition("/")[0] or "/")
    except OSError as error:
        raise _unwritten(found.output, output, error) from error
    short = "" if len(vocabulary) == size else f" ({size:,} were asked for; the text has no more)"
    learnt = f"learnt from {counted(len(texts), 'document')}, {sum(len(text) for text in texts) / 1e6:.1f} M characters"
    show(in_line(f"{found.output}: {len(vocabulary):,} tokens{short}{new}, {learnt}{gain}"))


def _given(ours: OneLineParser, found: argparse.Namespace) -> list[str]:
    """The entries of --extend; ends where there is no room for more."""
    given = load_vocabulary(found.extend)
    check_case(given, not found.cased, found.extend)
    if found.size is None:
        ours.error(f"--extend needs --size N, the entries wanted in all, more than the {len(given)} of {found.extend}")
    if found.size <= len(given):
        ours.error(f"--size {found.size} leaves no room beside the {len(given)} entries of --extend; ask for more")
    return given


def _check_output(ours: OneLineParser, told: str, output: str) -> bool:
    """End where a vocabulary can't be written under a name, before anything is read; tell whether it is there."""
    local = None if files.is_remote(output) else Path(output)
    try:
        if told.endswith("/") or (local and is_dir(local)):
            ours.error(f"--output {told} is a folder; name the file to write in it")
        if local and exists(local) and not is_file(local):
            ours.error(f"--output {told} is there, and no file; give the vocabulary another name")
        return files.exists(output)
    except (OSError, ValueError) as error:  # the latter of a URL that Beam does not know
        raise _unwritten(f"--output {told}", output, error) from error


def _unwritten(named: str, output: str, error: Exception) -> VocabularyError:
    """What to raise of an output that can't be written: by its own name, whichever file it is written as."""
    why = reason(error) if isinstance(error, OSError) and error.errno else files.why_not_found(output, error)
    return VocabularyError(f"{named}: can't be written ({why}); use another place")


def main(argv: Sequence[str] | None = None) -> None:
    """The command: errors in one line, exit code 2 for the user's and 1 for a vocabulary that may be read later."""
    try:
        run(sys.argv[1:] if argv is None else argv)
    except (SourceError, StorageError, UnavailableError, VocabularyError) as error:
        tell_error(error, "train_vocab")
        raise SystemExit(exit_code(error)) from error


if __name__ == "__main__":
    end_when_interrupted("train_vocab: interrupted; nothing was written")
    main()
