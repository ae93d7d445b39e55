"""What a job counted, as the statistics of its manifest, and these as a few lines for its user."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from preprocessing.inputs import Input
from preprocessing.layout import SEVERAL, Counts
from preprocessing.schema import Manifest
from preprocessing.sources import MAX_DOCUMENT, Columns
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
    """What a finished job says: what was read, what was dropped, what was made."""
    statistics, documents = manifest.statistics, manifest.statistics["documents"]
    size = sum(entry.bytes for entry in manifest.shards)
    counts = {split: len(manifest.split(split)) for split in ("train", "validation")}  # type: ignore[arg-type]
    tokens_a_word = statistics["tokens"] / max(1, statistics["words"])
    characters = sum(source["characters"] for source in statistics["sources"].values())
    lines = [
        f"{output}: done in {seconds:.1f} s",
        f"  inputs     {counted(len(inputs), 'file')}, {sum(file.bytes for file in inputs) / 1e6:,.1f} MB",
        f"  documents  {documents['in_shards']:,} ({documents['skipped']:,} skipped, "
        f"{documents['collisions']:,} older versions of a document (same id) dropped)",
        f"  text       {statistics['sentences']:,} sentences, {characters / 1e6:,.1f} M characters",
        f"  tokens     {statistics['tokens']:,}, {tokens_a_word:.2f} a word, {statistics['unknown_rate']:.3%} unknown",
    ]
    if rule := manifest.options["train_vocabulary"]:
        entries, wanted = manifest.vocabulary.size, rule["size"]
        fewer = f" ({wanted:,} wanted; the corpus has no more)" if entries < wanted else ""
        lines.append(f"  vocabulary {entries:,} entries{fewer}")
    for length, splits in sorted(statistics["pairs"].items(), key=lambda pairs: int(pairs[0])):
        next_rate = " ({:.1%} next)" if manifest.options["pairs"]["next_sentence"] else ", single segments"
        told = ", ".join(f"{n['pairs']:,} {split}{next_rate.format(n['is_next_rate'])}" for split, n in splits.items())
        unreached = sum(n["unreached_tokens"] for n in splits.values()) / max(1, statistics["tokens"])
        lines.append(f"  pairs {length:>4} {told}; {unreached:.1%} of tokens in no pair")
    skipped = [source["skipped"] for source in statistics["sources"].values()]
    if manifest.options["validation_fraction"] and not manifest.split("validation"):
        lines.append("  no validation split: it needs at least four documents")
    lines.extend(_tell_held_out(manifest))
    reasons = [f"{count:,} {reason}" for source in skipped for reason, count in source.items()]
    if reasons:
        lines.append(f"  skipped    {', '.join(reasons)}")
    if too_large := sum(source.get("too_large", 0) for source in skipped):
        lines.append(
            f"  too large  {too_large:,} of more than {MAX_DOCUMENT:,} characters are not in the shards; {SEVERAL}"
        )
    title, jsonl = manifest.options["read"]["jsonl"]["title"], statistics["sources"].get("jsonl")
    if jsonl and title != Columns.title and not jsonl["titles"]:
        lines.append(f"  no titles: the field {title!r} of --jsonl-title-field is in no document of --jsonl")
    if replaced := sum(source["replaced"] for source in statistics["sources"].values()):
        lines.append(f"  replaced   {counted(replaced, 'place')} with bytes that are no UTF-8")
    if guessed := sum(source["windows_1252"] for source in statistics["sources"].values()):
        lines.append(
            f"  encoding   {counted(guessed, 'file')} taken for Windows-1252, being no UTF-8; "
            "docs/preprocessing.md tells how to find those that are in another encoding"
        )
    tagged = sum(source["tagged"] for source in statistics["sources"].values())
    if tagged > MANY_TAGGED * documents["read"]:
        lines.append(
            f"  markup     {tagged:,} of {counted(documents['read'], 'document')} have tags of HTML, kept as text; "
            "docs/preprocessing.md tells how to strip them"
        )
    repeated = Counter[str]()
    for source in statistics["sources"].values():
        repeated.update(source["repeated"])
    if repeated["lines"]:
        lines.append(f"  repeated   {counted(repeated['lines'], 'line')} dropped, {repeated['tokens']:,} tokens")
    for name, told in statistics.get("contamination", {}).items():
        lines.append(f"  benchmark  {name}: {told['in_corpus']:,} of {told['texts']:,} texts are in the corpus")
    lines.append(
        f"  shards     {counts['train']} train, {counts['validation']} validation, {size / 1e6:,.1f} MB, "
        f"{size / max(1, statistics['tokens']):.2f} bytes a token"
    )
    drawn = [n for splits in statistics["pairs"].values() for n in splits.values()]
    pairs = sum(n["pairs"] for n in drawn)
    few = sum(n["is_next"] for n in drawn) < FEW_NEXT_RATE * pairs - math.sqrt(pairs)  # which chance would hardly do
    unreached = max(n["unreached_tokens"] for n in drawn) / max(1, statistics["tokens"])
    if unreached > MANY_UNREACHED:
        average = statistics["tokens"] / statistics["sentences"]
        lines.append(
            f"  many tokens in no pair: a sentence has {average:,.0f} of them on average, and of one longer than a "
            "sequence a pass keeps one stretch; where no marks end sentences, give one a line, by --books-format google"
        )
    elif manifest.options["pairs"]["next_sentence"] and few:
        lines.append(f"  few true next sentences: {_why_few_next(manifest)}")
    if statistics["unknown_rate"] > STRANGE_UNKNOWN_RATE:
        lines.append(
            "  so many unknown tokens suggest the wrong vocabulary, one too small for the script's characters, "
            "or a wrong --cased"
        )
    if tokens_a_word > STRANGE_TOKENS_A_WORD:
        lines.append(
            "  so many tokens a word suggest a vocabulary of another language or, as for Korean, one without --cased, "
            "and are usual where no blanks stand between words, as in Thai"
        )
    return "\n".join(map(in_line, lines))


def _tell_held_out(manifest: Manifest) -> Iterator[str]:
    """The share of the tokens that is held out, where that is far from the share of documents that was asked for."""
    asked, held_out = manifest.options["validation_fraction"], manifest.split("validation")
    rows, documents = sum(entry.rows for entry in held_out), manifest.statistics["documents"]["in_shards"]
    share = sum(entry.tokens for entry in held_out) / manifest.statistics["tokens"]
    if held_out and not asked / FAR_FROM_ASKED <= share <= asked * FAR_FROM_ASKED:
        yield (
            f"  held out   {rows:,} of {counted(documents, 'document')} with {share:.1%} of the tokens, where "
            f"--validation-fraction says {asked:.1%}: whole documents are held out, two at least; more documents come "
            "nearer"
        )


def _why_few_next(manifest: Manifest) -> str:
    """Which sentences are alone in their sequences, so that what follows is always a random one; and what to do."""
    statistics, documents = manifest.statistics, manifest.statistics["documents"]["in_shards"]
    alone = sum(source["one_sentence"] for source in statistics["sources"].values())
    if alone > FEW_NEXT_RATE * documents:
        return f"{alone:,} of {documents:,} documents are of one sentence; --no-nsp draws no next sentences"
    average = statistics["tokens"] / statistics["sentences"]
    return (
        f"a sentence has {average:,.0f} tokens on average, and two seldom fit in a sequence of "
        f"{min(manifest.sequence_lengths)}; take longer --sequence-lengths, or --no-nsp"
    )
