"""How fast the preprocessing job is beside its peers, measured in one run on one machine.

    python benchmarks/make_shards.py --books books/ --dump enwiki-*.xml.bz2 --vocab vocab.txt
        [--megabytes 20]        a quick look; without it the figures of docs/results/preprocessing.md, 15 minutes
        [--google-bert DIR]     google-research/bert too: a clone, with TensorFlow

Every measurement runs in a fresh process that is pinned to its cores. Rates are given in wall time and in CPU time of
the process and its children, which a busy machine disturbs less; ratios are of CPU time on one core, and of wall time
where processes run side by side. Peak memory is anonymous memory (mapped files not counted) of all processes together.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import gc
import io
import json
import logging
import multiprocessing
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psutil

SHORT = 12  # words of a short document
REPLACED, INVENTED = 0.05, 0.005  # shares of a copy's words that are others, and that are new
GOOGLE_SAMPLE = 2_000_000  # bytes: google's script makes a quarter of a megabyte a second
PEER_SAMPLE = 4_000_000  # bytes of wikitext
TWO_WORKERS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


class Measured(NamedTuple):
    """What a function took."""

    wall: float  # seconds
    cpu: float  # seconds, of the process and its children
    peak: float  # bytes of anonymous memory
    result: Any


# --- The corpus ---


def perturbed(text: str, seed: str) -> str:
    """A copy that differs in most lines, and has new words as another text would."""
    chance = random.Random(seed)
    words = text.split(" ")
    for _ in range(int(len(words) * REPLACED)):
        here, there = chance.randrange(len(words)), chance.randrange(len(words))
        if words[here].isalpha() and words[there].isalpha():
            words[here] = words[there]
    for _ in range(int(len(words) * INVENTED)):
        here = chance.randrange(len(words))
        if words[here].isalpha():
            words[here] += chance.choice(words[here]) + chance.choice(words[here])
    return " ".join(words)


def write_books(books: list[Path], folder: Path, size: int) -> int:
    """Books as they are, and then perturbed ones, until there is so much text; returns the bytes written."""
    folder.mkdir()
    written = copy = 0
    while written < size:
        for book in books:
            if written >= size:
                break
            text = book.read_text(encoding="utf-8", errors="replace")
            path = folder / f"{copy:03d}-{book.name}"
            path.write_text(perturbed(text, f"{copy}{book.name}") if copy else text, encoding="utf-8")
            written += path.stat().st_size
        copy += 1
    return written


def write_dump(dump: Path, target: Path, size: int) -> int:
    """The dump's pages again and again, with other ids and perturbed, as plain XML; returns the bytes written."""
    xml = bz2.decompress(dump.read_bytes()).decode()
    head, pages = xml.split("<page>", 1)[0], re.findall(r"<page>.*?</page>", xml, re.DOTALL)
    body, copy, written = [head], 0, 0
    while written < size:
        for page in pages:
            new = perturbed(page, f"{copy}{len(body)}") if copy else page
            number = int(re.search(r"<id>(\d+)</id>", page)[1])  # type: ignore[index]
            body.append(new.replace(f"<id>{number}</id>", f"<id>{copy * 10**8 + number}</id>", 1))
            written += len(body[-1].encode())
        copy += 1
    target.write_text("".join(body) + "</mediawiki>\n", encoding="utf-8")
    return target.stat().st_size


def write_short(books: Path, target: Path, size: int) -> int:
    """The words of books, twelve a document, as JSON lines with so many bytes of text; returns the documents."""
    documents = written = 0
    with target.open("w", encoding="utf-8") as file:
        for book in sorted(books.iterdir()):
            words = book.read_text(encoding="utf-8").split()
            for begin in range(0, len(words), SHORT):
                if written >= size:
                    return documents
                text = " ".join(words[begin : begin + SHORT])
                file.write(json.dumps({"text": text}) + "\n")
                documents, written = documents + 1, written + len(text.encode())
    return documents


# --- Measuring ---


def anonymous_memory() -> int:
    """Bytes of anonymous memory of this process and its children."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            total += memory.rss - getattr(memory, "shared", 0)
    return total


def _in_this_process(cores: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Measured:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.25):
            peak[0] = max(peak[0], anonymous_memory())

    threading.Thread(target=watch, daemon=True).start()
    begun = time.monotonic()
    result = function(*arguments)
    wall = time.monotonic() - begun
    done.set()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measured(wall, time.process_time() + children.ru_utime + children.ru_stime, float(peak[0]), result)


def measured(function: Callable[..., Any], *arguments: Any, cores: int = 1) -> Measured:
    """Call a function in a fresh process on so many cores; CPU time includes the start of that process."""
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_in_this_process, cores, function, arguments).result()


# --- What is measured ---


def job(*arguments: object) -> dict[str, Any]:
    """The command, with this script's settings; returns the manifest and the bytes of the shards."""
    logging.getLogger().setLevel(logging.ERROR)
    from preprocessing.make_shards import run
    from preprocessing.schema import ShardDirectory

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run([str(argument) for argument in (*arguments, "--sequence-lengths", 128, "--duplicates", 5)])
    manifest = ShardDirectory(str(arguments[arguments.index("--output") + 1])).manifest
    return {"bytes": sum(entry.bytes for entry in manifest.shards), **manifest.statistics}


def sentences_of(books: Iterable[Path]) -> list[str]:
    """The sentences that the job finds in books."""
    from preprocessing.sources import Document
    from preprocessing.sources.books import read
    from preprocessing.text import clean, split_lines

    items = [item for path in sorted(books) for item in read(io.BytesIO(path.read_bytes()), "")]
    texts = [item.text for item in items if isinstance(item, Document)]
    return [sentence for text in texts for line in split_lines(clean(text), "en") for sentence in line]


def bare_tokenizer(books: Path, vocabulary: Path) -> float:
    """CPU seconds that `tokenizers` takes for the sentences of books and nothing else."""
    from preprocessing.tokenization import build_tokenizer, load_vocabulary

    tokenizer, sentences = build_tokenizer(load_vocabulary(vocabulary), lowercase=True), sentences_of(books.iterdir())
    gc.disable()
    begun = time.process_time()
    for begin in range(0, len(sentences), 10_000):
        tokenizer.encode_batch_fast(sentences[begin : begin + 10_000], add_special_tokens=False)
    return time.process_time() - begun


def engines(books: Path, vocabulary: Path) -> dict[str, float]:
    """CPU seconds that each engine takes for the sentences of books: what a job pays, first sight of words included."""
    from preprocessing.encoder import Encoder
    from preprocessing.tokenization import load_vocabulary

    sentences, tokens, taken = sentences_of(books.iterdir()), load_vocabulary(vocabulary), {}
    for engine in ("words", "nanotoken"):
        if engine == "words" or find_spec(engine):
            encode = Encoder(tokens, True, engine)  # type: ignore[arg-type]
            begun = time.process_time()
            encode(sentences)
            taken[engine] = time.process_time() - begun
    return taken


def mwparserfromhell_rate(dump: Path) -> float:
    """Seconds of CPU that mwparserfromhell takes for a byte of wikitext."""
    import mwparserfromhell

    xml = dump.read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>(.*?)</text>", xml[: 3 * PEER_SAMPLE], re.DOTALL)
    articles = [text for text in texts if not text.upper().startswith("#REDIRECT")]
    begun, size = time.process_time(), 0
    for text in articles:
        str(mwparserfromhell.parse(text).strip_code())
        size += len(text.encode())
        if size > PEER_SAMPLE:
            break
    return (time.process_time() - begun) / size


def google(clone: Path, books: Path, vocabulary: Path, folder: Path) -> dict[str, float]:
    """google-research/bert's script on the beginning of the same text."""
    text, size = folder / "google.txt", 0
    with text.open("w", encoding="utf-8") as file:
        for path in sorted(books.iterdir()):
            lines = "\n".join(sentences_of([path])) + "\n\n"
            size += len(lines.encode())
            file.write(lines)
            if size > GOOGLE_SAMPLE:
                break
    output = folder / "google.tfrecord"
    command = [
        sys.executable, str(clone / "create_pretraining_data.py"), f"--input_file={text}", f"--output_file={output}",
        f"--vocab_file={vocabulary}", "--do_lower_case=True", "--max_seq_length=128",
        "--max_predictions_per_seq=20", "--dupe_factor=5", "--random_seed=1",
    ]  # fmt: skip
    subprocess.run(command, cwd=clone, check=True, capture_output=True)
    return {"text": size, "bytes": output.stat().st_size}


# --- Stages ---

STAGES = {  # label -> function (module of preprocessing, name); what one calls of another is counted there
    "read the files": ("first_pass", "read_inputs"),
    "clean": ("first_pass", "clean"),
    "split sentences": ("first_pass", "split_lines"),
    "token ids": ("encoder", "Encoder.__call__"),
    "fingerprints of lines": ("first_pass", "fingerprint"),
    "first pass, the rest": ("transforms", "tokenize_unit"),
    "find what is there twice": ("transforms", "find_drops"),
    "pairs": ("shards", "_pair_column"),
    "second pass, the rest": ("transforms", "write_shard"),
}
REST = "start, Beam and the rest"


class Stopwatch:
    """Exclusive CPU seconds by label, of functions and generators that may call each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    def _switch(self) -> None:
        now = time.process_time()
        if self._running:
            self.seconds[self._running[-1]] = self.seconds.get(self._running[-1], 0.0) + now - self._since
        self._since = now

    @contextlib.contextmanager
    def running(self, label: str) -> Iterator[None]:
        """Count for a label what is not counted for another within."""
        self._switch()
        self._running.append(label)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def wrap(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """The function, counted."""

        @wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            with self.running(label):
                result = function(*arguments, **named)
            return self._counted_items(result, label) if hasattr(result, "__next__") else result

        return counted

    def _counted_items(self, items: Iterator[Any], label: str) -> Iterator[Any]:
        while True:
            with self.running(label):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item


def stages(*arguments: object) -> dict[str, float]:
    """CPU seconds of a job by stage."""
    logging.getLogger().setLevel(logging.ERROR)  # Beam warns at its import
    import preprocessing.launch  # noqa: F401 - what is wrapped below

    watch = Stopwatch()
    for label, (module, name) in STAGES.items():
        place: Any = sys.modules[f"preprocessing.{module}"]
        *inner, last = name.split(".")
        for part in inner:
            place = getattr(place, part)
        setattr(place, last, watch.wrap(getattr(place, last), label))
    job(*arguments)
    return watch.seconds | {REST: time.process_time() - sum(watch.seconds.values())}


# --- The report ---


def report_text(books: Path, size: int, options: argparse.Namespace, folder: Path) -> None:
    """Plain text on one core and on two."""
    shared = ["--books", books / "*.txt", "--vocab", options.vocab, "--num-shards", 2]  # one for each process of two
    few = sorted(books.iterdir())[0]
    tiny = ["--books", few, sorted(books.iterdir())[1], "--vocab", options.vocab]
    megabytes = size / 1e6
    bare = measured(bare_tokenizer, books, options.vocab).result
    one = measured(job, *shared, "--output", folder / "one")
    bare = (bare + measured(bare_tokenizer, books, options.vocab).result) / 2
    fallback = measured(job, *shared, "--output", folder / "words", "--encoder", "words")
    single = measured(job, *tiny, "--output", folder / "tiny-one")
    double = measured(job, *tiny, "--output", folder / "tiny-two", *TWO_WORKERS, cores=2)
    two = measured(job, *shared, "--output", folder / "two", *TWO_WORKERS, cores=2)
    print(f"\nPlain text: {megabytes:.1f} MB, 5 duplicates of 128\n")
    print(
        "| | MB/s, CPU time | MB/s, wall time | times `tokenizers` | peak memory, MB |\n"
        "| --- | ---: | ---: | ---: | ---: |"
    )
    print(f"| `tokenizers` encode_batch_fast alone, one core | {megabytes / bare:.2f} | | 1 | |")
    for name, each in (("the job, one core", one), ("the job, one core, `--encoder words`", fallback)):
        print(
            f"| {name} | {megabytes / each.cpu:.2f} | {megabytes / each.wall:.2f} | {bare / each.cpu:.2f} "
            f"| {each.peak / 1e6:,.0f} |"
        )
    print(
        f"| the job, two worker processes | {megabytes / two.cpu:.2f} | {megabytes / two.wall:.2f} "
        f"| | {two.peak / 1e6:,.0f} |"
    )
    gain = (one.wall - single.wall) / (two.wall - double.wall)
    print(f"\nTwo processes: {gain:.2f} times one, start-up ({single.wall:.1f} s and {double.wall:.1f} s) not counted;")
    print(f"they had {two.cpu / two.wall:.2f} cores of the machine, one process {one.cpu / one.wall:.2f}.")
    print(f"{one.result['bytes'] / one.result['tokens']:.2f} bytes a token on disk.")
    if options.google_bert:
        theirs = measured(google, options.google_bert, books, options.vocab, folder)
        rate = theirs.result["text"] / 1e6 / theirs.cpu
        print(
            f"google-research/bert, {theirs.result['text'] / 1e6:.1f} MB of the same text: {rate:.2f} MB/s (CPU), "
            f"the job is {megabytes / one.cpu / rate:.0f} times as fast; "
            f"{theirs.result['bytes'] / 1e6:.1f} MB of TFRecord."
        )


def report_engines(books: Path, size: int, options: argparse.Namespace) -> None:
    """The two engines by themselves."""
    print("\n| ids of the same sentences | MB/s |\n| --- | ---: |")
    for engine, seconds in measured(engines, books, options.vocab).result.items():
        print(f"| {engine} | {size / 1e6 / seconds:.1f} |")


def report_stages(books: Path, size: int, options: argparse.Namespace, folder: Path) -> None:
    """Where the time of the job on plain text goes."""
    taken = measured(stages, "--books", books / "*.txt", "--vocab", options.vocab, "--output", folder / "stages").result
    total = sum(taken.values())
    print("\n| stage, one core | ms a MB | share |\n| --- | ---: | ---: |")
    for label in [*(label for label in STAGES if label in taken), REST]:
        print(f"| {label} | {taken[label] / size * 1e9:.1f} | {taken[label] / total:.0%} |")
    print(f"| all | {total / size * 1e9:.1f} | 100% |")


def report_short(books: Path, options: argparse.Namespace, folder: Path) -> None:
    """Short documents, such as titles and comments, on one core: a corpus, and one three times as large."""
    print(f"\nDocuments of {SHORT} words, 5 duplicates of 128, one core\n")
    print("| documents | MB of text | MB/s, CPU time | peak memory, MB |\n| ---: | ---: | ---: | ---: |")
    for share in (0.05, 0.15):
        size = int(share * options.megabytes * 1e6)
        documents = write_short(books, folder / "short.jsonl", size)
        arguments = ["--jsonl", folder / "short.jsonl", "--vocab", options.vocab, "--output", folder / f"short-{size}"]
        ours = measured(job, *arguments)
        print(f"| {documents:,} | {size / 1e6:.1f} | {size / 1e6 / ours.cpu:.2f} | {ours.peak / 1e6:,.0f} |")


def report_dump(options: argparse.Namespace, folder: Path) -> None:
    """A Wikipedia dump on one core."""
    dump = folder / "dump.xml"
    size = write_dump(options.dump, dump, int(options.megabytes * 0.3e6))
    ours = measured(job, "--wikipedia", dump, "--vocab", options.vocab, "--output", folder / "wiki")
    print(f"\nWikipedia dump: {size / 1e6:.1f} MB of XML, 5 duplicates of 128, one core\n")
    print(f"The job, end to end: {size / 1e6 / ours.cpu:.2f} MB/s (CPU), {size / 1e6 / ours.wall:.2f} MB/s (wall).")
    if find_spec("mwparserfromhell") is None:
        print("mwparserfromhell: not measured, it is not installed (pip install mwparserfromhell).")
        return
    theirs = 1 / measured(mwparserfromhell_rate, dump).result / 1e6
    print(
        f"mwparserfromhell's strip_code alone: {theirs:.2f} MB/s of wikitext; "
        f"the job is {size / 1e6 / ours.cpu / theirs:.1f} times as fast."
    )


def main() -> None:
    """Measures and prints tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True, help="folder of .txt, two at least")
    parser.add_argument("--dump", type=Path, required=True, help="a Wikipedia dump, .bz2")
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=200, help="of plain text (default: %(default)s)")
    parser.add_argument("--google-bert", type=Path, metavar="DIR", help="a clone of google-research/bert")
    options = parser.parse_args()
    for path in (options.books, options.dump, options.vocab):
        if not path.exists():
            parser.error(f"{path} is not there")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", json.dumps(dict(versions())))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        size = write_books(sorted(options.books.glob("*.txt")), folder / "books", int(options.megabytes * 1e6))
        report_text(folder / "books", size, options, folder)
        report_engines(folder / "books", size, options)
        report_stages(folder / "books", size, options, folder)
        report_short(folder / "books", options, folder)
        report_dump(options, folder)


def versions() -> Iterator[tuple[str, str]]:
    """The packages that the figures depend on."""
    from importlib.metadata import version

    for package in ("apache-beam", "nanotoken", "pyarrow", "tokenizers"):
        if find_spec(package.replace("apache-", "apache_")):
            yield package, version(package)


if __name__ == "__main__":
    main()
