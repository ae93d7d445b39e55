"""What a job counted, as the statistics of its manifest, and these as a few lines for its user."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from preprocessing.inputs import Input
from preprocessing.layout import SEVERAL, Counts
from preprocessing.schema import Manifest
from preprocessing.sources import MAX_DOCUMENT, MAX_LINES, Columns
from preprocessing.sources.lines import MAX_VALUES
from preprocessing.sources.registry import SOURCES
from preprocessing.terminal import counted, in_line

STRANGE_UNKNOWN_RATE = 0.05
STRANGE_TOKENS_A_WORD = 3.0  # with punctuation marks as words; letter by letter it is 4 or more
MANY_UNREACHED = 0.25  # of tokens; in prose some per cent are what is cut off long sentences
FEW_NEXT_RATE = 0.25  # of pairs; about half of them is usual, and a third where documents are of two sentences
FAR_FROM_ASKED = 2  # times as large a share held out, or as small a one
MANY_TAGGED = 0.01  # of documents; some may be about HTML


def tell_statistics(counts: Counts, lengths: Iterable[int]) -> dict[str, Any]:
    """The statistics of a manifest, from the counts of both passes."""
    totals = {name: sum(_under(counts, name).values()) for name in ("kept", "skipped", "documents", "dropped")}
    collisions = sum(count for name, count in _under(counts, "dropped").items() if name.endswith("/collision"))
    words, tokens, unknown = (sum(_under(counts, name).values()) for name in ("words", "tokens", "unknown"))
    sources = sorted({name.split("/")[1] for name in counts if name.startswith(("kept/", "skipped/"))})
    return {
        "documents": {
            "read": totals["kept"] + totals["skipped"],
            "in_shards": totals["documents"],
            "collisions": collisions,
            "skipped": totals["skipped"] + totals["dropped"] - collisions,
        },
        "sentences": sum(_under(counts, "sentences").values()),
        "words": words,
        "tokens": tokens,
        "unknown_tokens": unknown,
        "unknown_rate": unknown / max(1, tokens),
        "pairs": {str(length): _pair_statistics(counts, length) for length in lengths},
        "sources": {source: _source_statistics(counts, source) for source in sources},
    }


def _pair_statistics(counts: Counts, length: int) -> dict[str, Any]:
    pairs, true_next, unreached = (_under(counts, f"{name}/{length}") for name in ("pairs", "next", "unreached"))
    return {
        split: {
            "pairs": pairs[split],
            "is_next": true_next[split],
            "is_next_rate": true_next[split] / pairs[split],
            "unreached_tokens": unreached[split],
        }
        for split in sorted(pairs)
    }


def _source_statistics(counts: Counts, source: str) -> dict[str, Any]:
    names = (
        "documents", "titles", "one_sentence", "sentences", "words", "characters", "replaced", "windows_1252", "tagged",
        "tokens", "unknown",
    )  # fmt: skip
    own: dict[str, Any] = {name: counts[f"{name}/{source}"] for name in names}
    dropped = _under(counts, f"dropped/{source}")
    return own | {
        "collisions": dropped.pop("collision", 0),
        "skipped": dict(sorted((_under(counts, f"skipped/{source}") | dropped).items())),
        "repeated": {name: counts[f"repeated/{source}/{name}"] for name in ("lines", "sentences", "tokens")},
    }


def _under(counts: Counts, prefix: str) -> dict[str, int]:
    """The counts whose names begin with prefix/, without it."""
    return {name.removeprefix(f"{prefix}/"): count for name, count in counts.items() if name.startswith(f"{prefix}/")}


def summary(manifest: Manifest, output: str, inputs: Sequence[Input], seconds: float) -> str:
    """What a finished job says: what was read, what was dropped, what was made, and what seems wrong with it."""
    lines = [
        f"{output}: done in {seconds:.1f} s",
        f"  inputs     {counted(len(inputs), 'file')}, {sum(file.bytes for file in inputs) / 1e6:,.1f} MB",
        *_tell_corpus(manifest),
        *_tell_pairs(manifest),
        *_tell_held_out(manifest),
        *_tell_passed_over(manifest),
        *_tell_texts(manifest),
        *_tell_repeated(manifest),
        *_tell_shards(manifest),
        *_advise(manifest),
    ]
    return "\n".join(map(in_line, lines))


def _tell_corpus(manifest: Manifest) -> Iterator[str]:
    statistics, documents = manifest.statistics, manifest.statistics["documents"]
    characters = _total(manifest, "characters")
    yield (
        f"  documents  {documents['in_shards']:,} ({documents['skipped']:,} skipped, "
        f"{counted(documents['collisions'], 'older version')} of a document (same id) dropped)"
    )
    yield f"  text       {statistics['sentences']:,} sentences, {characters / 1e6:,.1f} M characters"
    yield (
        f"  tokens     {statistics['tokens']:,}, {_tokens_a_word(manifest):.2f} a word, "
        f"{statistics['unknown_rate']:.3%} unknown"
    )
    if rule := manifest.options["train_vocabulary"]:
        entries, wanted = manifest.vocabulary.size, rule["size"]
        fewer = f" ({wanted:,} wanted; the corpus has no more)" if entries < wanted else ""
        yield f"  vocabulary {entries:,} entries{fewer}"


def _tell_pairs(manifest: Manifest) -> Iterator[str]:
    statistics = manifest.statistics
    next_rate = " ({:.1%} next)" if manifest.options["pairs"]["next_sentence"] else ", single segments"
    for length, splits in sorted(statistics["pairs"].items(), key=lambda pairs: int(pairs[0])):
        told = ", ".join(f"{n['pairs']:,} {split}{next_rate.format(n['is_next_rate'])}" for split, n in splits.items())
        unreached = sum(n["unreached_tokens"] for n in splits.values()) / max(1, statistics["tokens"])
        yield f"  pairs {length:>4} {told}; {unreached:.1%} of tokens in no pair"


def _tell_held_out(manifest: Manifest) -> Iterator[str]:
    """The share of the tokens that is held out, where that is far from the share of documents that was asked for."""
    asked, held_out = manifest.options["validation_fraction"], manifest.split("validation")
    if asked and not held_out:
        yield "  no validation split: it needs at least four documents"
    rows, documents = sum(entry.rows for entry in held_out), manifest.statistics["documents"]["in_shards"]
    share = sum(entry.tokens for entry in held_out) / manifest.statistics["tokens"]
    if held_out and not asked / FAR_FROM_ASKED <= share <= asked * FAR_FROM_ASKED:
        yield (
            f"  held out   {rows:,} of {counted(documents, 'document')} with {share:.1%} of the tokens, where "
            f"--validation-fraction says {asked:.1%}: whole documents are held out, two at least; more documents come "
            "nearer"
        )


def _tell_passed_over(manifest: Manifest) -> Iterator[str]:
    skipped: Counter[str] = Counter()  # by reason; sources share some
    for source in manifest.statistics["sources"].values():
        skipped.update(source["skipped"])
    if skipped:
        yield f"  skipped    {', '.join(f'{count:,} {reason}' for reason, count in sorted(skipped.items()))}"
    if too_large := skipped["too_large"]:
        of_json = manifest.statistics["sources"].get("jsonl", {"skipped": {}})["skipped"].get("too_large")
        values = f", or in JSON {MAX_VALUES:,} strings, brackets and commas," if of_json else ""
        yield (
            f"  too large  {too_large:,} of more than {MAX_DOCUMENT:,} characters or {MAX_LINES:,} lines{values} "
            f"are not in the shards; {SEVERAL}"
        )


def _tell_texts(manifest: Manifest) -> Iterator[str]:
    """What the texts lack, or have that may not be meant."""
    read = manifest.statistics["documents"]["read"]
    for source, found in manifest.statistics["sources"].items():
        named = SOURCES[source].named
        title = manifest.options["read"][source]["title"] if named else Columns.title
        if title != Columns.title and not found["titles"]:
            yield f"  no titles: the {named} {title!r} of --{source}-title-{named} is in no document of --{source}"
    if replaced := _total(manifest, "replaced"):
        yield f"  replaced   {counted(replaced, 'place')} with bytes that are no UTF-8"
    if guessed := _total(manifest, "windows_1252"):
        yield (
            f"  encoding   {counted(guessed, 'file')} taken for Windows-1252, being no UTF-8; "
            "docs/preprocessing.md tells how to find those that are in another encoding"
        )
    if (tagged := _total(manifest, "tagged")) > MANY_TAGGED * read:
        yield (
            f"  markup     {tagged:,} of {counted(read, 'document')} have tags of HTML, kept as text; "
            "docs/preprocessing.md tells how to strip them"
        )


def _tell_repeated(manifest: Manifest) -> Iterator[str]:
    """What the corpus has twice, or has of a benchmark."""
    repeated = [source["repeated"] for source in manifest.statistics["sources"].values()]
    lines, tokens = (sum(source[name] for source in repeated) for name in ("lines", "tokens"))
    if lines:
        yield f"  repeated   {counted(lines, 'line')} dropped, {tokens:,} tokens"
    for name, told in manifest.statistics.get("contamination", {}).items():
        yield f"  benchmark  {name}: {told['in_corpus']:,} of {told['texts']:,} texts are in the corpus"


def _tell_shards(manifest: Manifest) -> Iterator[str]:
    size = sum(entry.bytes for entry in manifest.shards)
    yield (
        f"  shards     {len(manifest.split('train'))} train, {len(manifest.split('validation'))} validation, "
        f"{size / 1e6:,.1f} MB, {size / max(1, manifest.statistics['tokens']):.2f} bytes a token"
    )


def _advise(manifest: Manifest) -> Iterator[str]:
    """What seems wrong with the options, by what came of them."""
    statistics = manifest.statistics
    drawn = [n for splits in statistics["pairs"].values() for n in splits.values()]
    pairs = sum(n["pairs"] for n in drawn)
    few = sum(n["is_next"] for n in drawn) < FEW_NEXT_RATE * pairs - math.sqrt(pairs)  # which chance would hardly do
    if max(n["unreached_tokens"] for n in drawn) > MANY_UNREACHED * max(1, statistics["tokens"]):
        yield (
            f"  many tokens in no pair: a sentence has {_tokens_a_sentence(manifest):,.0f} of them on average, and of "
            "one longer than a sequence a pass keeps one stretch; where no marks end sentences, give one a line, by "
            "--books-format google"
        )
    elif manifest.options["pairs"]["next_sentence"] and few:
        yield f"  few true next sentences: {_why_few_next(manifest)}"
    if statistics["unknown_rate"] > STRANGE_UNKNOWN_RATE:
        yield (
            "  so many unknown tokens suggest the wrong vocabulary, one too small for the script's characters, "
            "or a wrong --cased"
        )
    if _tokens_a_word(manifest) > STRANGE_TOKENS_A_WORD:
        yield (
            "  so many tokens a word suggest a vocabulary of another language or, as for Korean, one without --cased, "
            "and are usual where no blanks stand between words, as in Thai"
        )


def _why_few_next(manifest: Manifest) -> str:
    """Which sentences are alone in their sequences, so that what follows is always a random one; and what to do."""
    alone, documents = _total(manifest, "one_sentence"), manifest.statistics["documents"]["in_shards"]
    if alone > FEW_NEXT_RATE * documents:
        return f"{alone:,} of {documents:,} documents are of one sentence; --no-nsp draws no next sentences"
    return (
        f"a sentence has {_tokens_a_sentence(manifest):,.0f} tokens on average, and two seldom fit in a sequence of "
        f"{min(manifest.sequence_lengths)}; take longer --sequence-lengths, or --no-nsp"
    )


def _total(manifest: Manifest, count: str) -> int:
    """What all sources have of something."""
    return sum(source[count] for source in manifest.statistics["sources"].values())


def _tokens_a_word(manifest: Manifest) -> float:
    return float(manifest.statistics["tokens"] / max(1, manifest.statistics["words"]))


def _tokens_a_sentence(manifest: Manifest) -> float:
    return float(manifest.statistics["tokens"] / manifest.statistics["sentences"])
