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
from collections.abc import Iterable, Sequence
from pathlib import Path

from preprocessing.sources import Document, Skipped, SourceError
from preprocessing.text import clean
from preprocessing.tokenization import VocabularyError, train_vocabulary

SAMPLE_BYTES = 200_000_000


def sample_texts(documents: Iterable[Document | Skipped], budget: int, seed: int) -> list[str]:
    """The texts of the documents with the lowest keyed hashes, as many as fit into a budget, in the hashes' order.

    Args:
        documents: in any order; what a reader skipped is passed over.
        budget: bytes of UTF-8; the first document is taken even if it is larger.
        seed: key of the hash.
    """
    key = str(seed).encode()
    heap: list[tuple[int, str]] = []  # highest hash on top
    total, cutoff = 0, (-(2**64), "")
    for document in documents:
        if isinstance(document, Skipped):
            continue
        digest = hashlib.blake2b(document.doc_id.encode(), digest_size=8, key=key, person=b"vocab sample").digest()
        entry = (-int.from_bytes(digest, "big"), clean(document.text))
        # Once a document had no room, none of a higher hash may slip in: which one did would be the files' order.
        if entry <= cutoff:
            continue
        heapq.heappush(heap, entry)
        total += len(entry[1].encode())
        while total > budget and len(heap) > 1:
            cutoff = heapq.heappop(heap)
            total -= len(cutoff[1].encode())
    return [text for _, text in sorted(heap, reverse=True)]


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    from preprocessing.options import OneLineParser, add_input_arguments, seed_number, whole_number

    parser = OneLineParser(
        prog="train_vocab",
        usage="python -m preprocessing.train_vocab --wikipedia GLOB --books GLOB --output FILE [options]",
        description="Train a WordPiece vocabulary on a sample of a corpus; the same corpus gives the same vocabulary.",
        allow_abbrev=False,
    )
    add_input_arguments(parser)
    options = parser.add_argument_group("vocabulary")
    options.add_argument(
        "--size", type=whole_number(1), default=30522, metavar="N", help="entries wanted (default: %(default)s)"
    )
    options.add_argument("--cased", action="store_true", help="keep case and accents")
    options.add_argument(
        "--sample-bytes",
        type=whole_number(1),
        default=SAMPLE_BYTES,
        metavar="N",
        help="learn from about this much text, drawn from all documents (default: %(default)s)",
    )
    options.add_argument(
        "--seed", type=seed_number, default=1, metavar="N", help="of the sample (default: %(default)s)"
    )
    options.add_argument("--output", required=True, metavar="FILE", help="the vocab.txt to write")
    return parser


def run(argv: Sequence[str]) -> None:
    """Read, sample, train, write; see --help.

    Raises:
        SourceError: an input that is not there or can't be read.
        VocabularyError: too little text, or too small a size.
    """
    from preprocessing import files, job
    from preprocessing.transforms import read_input

    ours = parser()
    found = ours.parse_args(argv)
    patterns = {source: getattr(found, source) for source in ("wikipedia", "books") if getattr(found, source)}
    if not patterns:
        ours.error("there is nothing to read: give --wikipedia or --books")
    inputs = job.find_inputs(patterns)
    documents = (document for file in inputs for document in read_input(file))
    texts = sample_texts(documents, found.sample_bytes, found.seed)
    vocabulary = train_vocabulary(texts, found.size, lowercase=not found.cased)
    output = files.absolute(found.output)
    files.write_text(output, "\n".join(vocabulary) + "\n", str(Path(output).parent))
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
    except (SourceError, VocabularyError) as error:
        print(f"train_vocab: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
