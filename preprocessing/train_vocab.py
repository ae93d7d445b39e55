"""Train a WordPiece vocabulary on a sample of a corpus: the command.

    python -m preprocessing.train_vocab --wikipedia 'enwiki-*.xml.bz2' --size 30522 --output vocab.txt

The sample and the vocabulary depend on the documents and the seed only, not on the order of files or on chance.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from preprocessing.extras import needs

with needs("preprocess"):
    from preprocessing.interruption import end_when_interrupted
    from preprocessing.sources import Document, Skipped, SourceError, StorageError
    from preprocessing.text import clean
    from preprocessing.tokenization import VocabularyError, train_vocabulary, vocabulary_text


def sample_hash(doc_id: str, seed: int) -> int:
    """A document's place in the order in which samples take documents: 64 bits."""
    key = str(seed).encode()
    digest = hashlib.blake2b(doc_id.encode(), digest_size=8, key=key, person=b"vocab sample").digest()
    return int.from_bytes(digest, "big")


def lowest(entries: Iterable[tuple[int, str]], budget: int) -> list[tuple[int, str]]:
    """Of (hash, text) those with the lowest hashes, as many as fit into a budget, in the hashes' order.

    What it takes of a whole it takes of the parts' own samples.

    Args:
        entries: in any order.
        budget: bytes of UTF-8; the first text is taken even if it is larger.
    """
    heap: list[tuple[int, str]] = []  # highest hash on top
    total, cutoff = 0, (-(2**64), "")
    for number, text in entries:
        entry = (-number, text)
        # Once a document had no room, none of a higher hash may slip in: which one did would be the files' order.
        if entry <= cutoff:
            continue
        heapq.heappush(heap, entry)
        total += len(text.encode())
        while total > budget and len(heap) > 1:
            cutoff = heapq.heappop(heap)
            total -= len(cutoff[1].encode())
    return [(-number, text) for number, text in sorted(heap, reverse=True)]


def hashed_texts(documents: Iterable[Document | Skipped], seed: int) -> Iterator[tuple[int, str]]:
    """(hash, cleaned text) of documents; what a reader skipped is passed over."""
    return (
        (sample_hash(document.doc_id, seed), clean(document.text))
        for document in documents
        if isinstance(document, Document)
    )


def sample_texts(documents: Iterable[Document | Skipped], budget: int, seed: int) -> list[str]:
    """The texts of the documents with the lowest keyed hashes, as many as fit into a budget, in the hashes' order."""
    return [text for _, text in lowest(hashed_texts(documents, seed), budget)]


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    from preprocessing.options import (
        MAX_VOCABULARY,
        OneLineParser,
        add_input_arguments,
        add_sample_bytes,
        seed_number,
        whole_number,
    )

    parser = OneLineParser(
        prog="train_vocab",
        usage="python -m preprocessing.train_vocab --wikipedia GLOB --books GLOB --output FILE [options]",
        description="Train a WordPiece vocabulary on a sample of a corpus; the same corpus gives the same vocabulary.",
        allow_abbrev=False,
    )
    add_input_arguments(parser)
    options = parser.add_argument_group("vocabulary")
    options.add_argument(
        "--size",
        type=whole_number(1, MAX_VOCABULARY),
        default=30522,
        metavar="N",
        help="entries wanted (default: %(default)s)",
    )
    options.add_argument("--cased", action="store_true", help="keep case and accents")
    add_sample_bytes(options, "--sample-bytes")
    options.add_argument(
        "--seed", type=seed_number, default=1, metavar="N", help="of the sample (default: %(default)s)"
    )
    options.add_argument("--output", required=True, metavar="FILE", help="the vocab.txt to write")
    return parser


def run(argv: Sequence[str]) -> None:
    """Read, sample, train, write; see --help.

    Raises:
        SourceError: an input that is not there or is damaged.
        StorageError: an input whose storage fails.
        VocabularyError: too little text, too small a size, or a vocabulary that can't be written.
    """
    from preprocessing import files
    from preprocessing.inputs import find_inputs
    from preprocessing.options import SAMPLE_BYTES, inputs_of, read_options, refuse_empty
    from preprocessing.reading import read_inputs

    ours = parser()
    found = ours.parse_args(argv)
    refuse_empty(ours, found)
    output = files.absolute(found.output)
    if found.output.endswith("/") or (not files.is_remote(output) and Path(output).is_dir()):
        ours.error(f"--output {found.output} is a folder; name the file to write in it")
    if not files.is_remote(output) and Path(output).exists() and not Path(output).is_file():
        ours.error(f"--output {found.output} is there, and no file; give the vocabulary another name")
    options = read_options(found)
    inputs = find_inputs(inputs_of(ours, found), note=partial(print, file=sys.stderr), options=options)
    documents = read_inputs(inputs, options)
    texts = sample_texts(documents, found.sample_bytes or SAMPLE_BYTES, found.seed)
    vocabulary = train_vocabulary(texts, found.size, lowercase=not found.cased)
    try:
        files.write_text(output, vocabulary_text(vocabulary), output.rpartition("/")[0] or "/")
    except OSError as error:
        raise VocabularyError(f"{found.output}: can't be written ({error}); use another place") from error
    short = "" if len(vocabulary) == found.size else f" ({found.size:,} were asked for; the text has no more)"
    print(
        f"{found.output}: {len(vocabulary):,} tokens{short}, learnt from {len(texts):,} documents, "
        f"{sum(len(text) for text in texts) / 1e6:.1f} M characters"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command: errors of the user's in one line, exit code 2."""
    # Beam, which the imports in the functions above bring in, warns of Google's client libraries, wanted or not.
    logging.getLogger().setLevel(logging.ERROR)
    try:
        run(sys.argv[1:] if argv is None else argv)
    except (SourceError, StorageError, VocabularyError) as error:
        print(f"train_vocab: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    end_when_interrupted("train_vocab: interrupted; nothing was written")
    main()
