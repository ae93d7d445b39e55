from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from preprocessing.schema import (
    PAIR,
    Manifest,
    Pairs,
    Shard,
    ShardDirectory,
    ShardEntry,
    ShardError,
    Vocabulary,
    checksum,
    checksum_of,
    list_column,
    shard_schema,
    token_type,
)
from preprocessing.storage_errors import UnavailableError
from tests.failing import fail_on
from tests.limits import limit, too_many_open_files
from tests.rewriting import rewrite_shard

LENGTHS = [16]
FILE = "shard-00000-of-00001.arrow"


def rewrite_manifest(directory: Path, **changes: object) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    pair = {"duplicate": 0, "a_begin": 0, "a_end": 2, "b_row": 1, "b_begin": 0, "b_end": 1, "is_next": False}
    true = pair | {"a_end": 1, "b_row": 0, "b_begin": 1, "b_end": 3, "is_next": True}
    rows = [
        {"doc_id": "a", "source": "books", "title": None, "tokens": [5, 6, 7], "sentence_ends": [1, 3]}
        | {"pairs_16": [pair, true]},
        {"doc_id": "b", "source": "books", "title": "B", "tokens": [8], "sentence_ends": [1], "pairs_16": []},
    ]
    schema = shard_schema(10, LENGTHS)
    with pa.OSFile(str(tmp_path / FILE), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("[PAD]\n")
    file = tmp_path / FILE
    entry = ShardEntry(FILE, "train", 2, 4, {"16": 2}, file.stat().st_size, checksum(file))
    vocabulary = Vocabulary(10, checksum(tmp_path / "tokenizer" / "vocab.txt"), lowercase=True)
    (tmp_path / "manifest.json").write_text(Manifest(1, LENGTHS, vocabulary, [entry]).to_json())
    return tmp_path


def test_a_shard_reads_as_it_was_written(directory: Path) -> None:
    opened = ShardDirectory(directory)
    opened.verify()
    (entry,) = opened.manifest.split("train")
    assert opened.manifest.split("validation") == []
    assert opened.manifest.pairs("train", 16) == 2
    shard = opened.shard(entry)
    assert shard.tokens.dtype == np.uint16
    assert shard.document(0).tolist() == [5, 6, 7]
    assert shard.document(1).tolist() == [8]
    assert shard.table.column("sentence_ends").to_pylist()[0] == [1, 3]
    pairs = shard.pairs(16)
    assert len(pairs) == 2
    assert pairs.row.tolist() == [0, 0]
    assert pairs.b_row.tolist() == [1, 0]
    assert pairs.is_next.tolist() == [False, True]
    assert pairs.b_end.dtype == np.int32


def test_the_columns_of_a_shard_are_fixed_for_ever() -> None:
    """Others are another version: the trainer wants these and no more, and could read no shard that is there."""
    numbers = [f"{name}: int32 not null" for name in ("a_begin", "a_end", "b_row", "b_begin", "b_end")]
    pair = ", ".join(["duplicate: int16 not null", *numbers])
    assert [(column.name, str(column.type), column.nullable) for column in shard_schema(65_536, LENGTHS)] == [
        ("doc_id", "string", False),
        ("source", "string", False),
        ("title", "string", True),
        ("tokens", "list<item: uint16 not null>", False),
        ("sentence_ends", "list<item: int32 not null>", False),
        ("pairs_16", f"list<item: struct<{pair}, is_next: bool not null> not null>", False),
    ]


def test_a_manifest_survives_json(directory: Path) -> None:
    text = (directory / "manifest.json").read_text()
    assert Manifest.from_json(text).to_json() == text
    large = text.replace(f'"bytes": {entry_of(directory)["bytes"]}', f'"bytes": {1 << 40}')
    assert Manifest.from_json(large).to_json() == large != text, "tokens are counted in 32 bits, bytes are not"


def test_equal_manifests_are_equal_bytes(directory: Path) -> None:
    manifest = ShardDirectory(directory).manifest
    one, other = ({"seed": 1, "language": "en"}, {"language": "en", "seed": 1})
    assert len({dataclasses.replace(manifest, options=options).to_json() for options in (one, other)}) == 1


def test_the_checksum_of_a_file_is_that_of_its_bytes(directory: Path) -> None:
    assert checksum(directory / FILE) == checksum_of((directory / FILE).read_bytes())
    assert len(checksum(directory / FILE)) == 32


@pytest.mark.parametrize(("pairs", "expected"), [
    ({"duplicates": 5}, 5), ({"duplicates": 1}, 1), ({}, 1), (None, 1), ([5], 1), ({"duplicates": 0}, 1),
    ({"duplicates": "5"}, 1), ({"duplicates": True}, 1), ({"duplicates": 1 << 70}, 1),
])  # fmt: skip
def test_what_options_say_of_duplicates_is_a_number_whatever_they_say(
    directory: Path, pairs: object, expected: int
) -> None:
    rewrite_manifest(directory, options={"pairs": pairs})
    assert ShardDirectory(directory).manifest.duplicates == expected


@pytest.mark.parametrize(("pairs", "expected"), [({"next_sentence": False}, False), ({}, True), (None, True)])
def test_samples_have_second_segments_unless_options_say_no(directory: Path, pairs: object, expected: bool) -> None:
    rewrite_manifest(directory, options={"pairs": pairs})
    assert ShardDirectory(directory).manifest.next_sentence == expected


def test_token_types() -> None:
    assert token_type(1 << 16) == pa.uint16()
    assert token_type((1 << 16) + 1) == pa.uint32()
    assert [field.nullable for field in PAIR] == [False] * 7


def entry_of(directory: Path) -> dict[str, object]:
    (entry,) = json.loads((directory / "manifest.json").read_text())["shards"]
    return dict(entry)


def cut_the_shard(directory: Path) -> None:
    (directory / FILE).write_bytes((directory / FILE).read_bytes()[:-8])


def put_a_folder_in_place_of_the_shard(directory: Path) -> None:
    (directory / FILE).unlink()
    (directory / FILE).mkdir()


def damage_the_shard(directory: Path) -> None:
    content = bytearray((directory / FILE).read_bytes())
    content[-1] ^= 1
    (directory / FILE).write_bytes(content)


BREAKAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda d: (d / "manifest.json").unlink(), "no manifest.json"),
    (lambda d: (d / "manifest.json").write_text("{"), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, format_version=99), "format version 99"),
    (lambda d: rewrite_manifest(d, vocabulary={}), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, sequence_lengths=[16, 32]), "other sequence lengths"),
    (lambda d: rewrite_manifest(d, seed="x"), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, seed=float("inf")), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"pairs": 3}]), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"bytes": "12"}]), "counts of .* are not whole numbers"),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"rows": True}]), "counts of .* are not whole numbers"),
    (
        lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"pairs": {"16": 1 << 31}}]),
        "counts of .* of a shard's size",
    ),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"pairs": {"016": 2}}]), "other sequence lengths"),
    (lambda d: rewrite_manifest(d, shards={}), "its shards are no list"),
    (lambda d: rewrite_manifest(d, sequence_lengths=[-16]), "its sequence lengths are not whole numbers"),
    (lambda d: rewrite_manifest(d, sequence_lengths=[16, 16]), "it has a sequence length twice"),
    (
        lambda d: rewrite_manifest(d, shards=[entry_of(d), entry_of(d) | {"split": "validation"}]),
        f"it has {FILE} twice",
    ),
    (put_a_folder_in_place_of_the_shard, "not a file"),
    (lambda d: rewrite_manifest(d, format_version=True), "format version True"),
    (
        lambda d: rewrite_manifest(d, vocabulary={"size": "9", "blake2b": "", "lowercase": True}),
        "its vocabulary is not",
    ),
    (lambda d: rewrite_manifest(d, vocabulary={"size": 0, "blake2b": "", "lowercase": True}), "its vocabulary is not"),
    (lambda d: rewrite_manifest(d, vocabulary={"size": 9, "blake2b": "", "lowercase": 1}), "its vocabulary is not"),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"split": "test"}]), f"{FILE} belongs to an unknown split"),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"bytes": 1 << 63}]), "counts of .* of a shard's size"),
    (lambda d: (d / "manifest.json").write_bytes(b'{"seed": "\xff"}'), "not a shard manifest"),
    (lambda d: (d / "manifest.json").write_text("[" * 100_000), "not a shard manifest"),
    (lambda d: (d / FILE).unlink(), "is not there"),
    (cut_the_shard, "bytes where the manifest says"),
    (lambda d: (d / FILE).write_bytes((d / FILE).read_bytes() + b"0"), "bytes where the manifest says"),
    (lambda d: (d / "tokenizer" / "vocab.txt").write_text("[UNK]\n"), "not the vocabulary"),
    (lambda d: (d / "tokenizer" / "vocab.txt").unlink(), "vocabulary is missing"),
]


@pytest.mark.parametrize(("breakage", "message"), BREAKAGES)
def test_a_broken_directory_is_refused(directory: Path, breakage: Callable[[Path], object], message: str) -> None:
    breakage(directory)
    with pytest.raises(ShardError, match=message):
        ShardDirectory(directory)


def test_a_path_that_is_no_directory_is_told_as_what_it_is(directory: Path) -> None:
    file = directory / "manifest.json"
    with pytest.raises(ShardError, match=f"^{file}: is a file; give its folder, {directory}$"):
        ShardDirectory(file)
    two = f"{directory}, {directory}/tokenizer"
    with pytest.raises(
        ShardError, match=f"^{two}: several names with commas; name one, or put blanks between them where"
    ):
        ShardDirectory(two)
    for gone in (f"{directory},{directory}/gone", f"{directory},", str(directory / "gone")):
        with pytest.raises(ShardError, match=f"^{gone}: no such directory; make shards with"):
            ShardDirectory(gone)


def test_a_directory_without_a_manifest_is_told_as_what_it_is(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    above = tmp_path_factory.mktemp("above")
    with pytest.raises(ShardError, match=f"^{above}: no manifest.json nor shards; make some with"):
        ShardDirectory(above)
    shutil.copytree(directory, above / "wiki")
    with pytest.raises(ShardError, match=f"^{above}: no manifest.json; give {above}/wiki$"):
        ShardDirectory(above)
    shutil.copytree(directory, above / "books")
    with pytest.raises(ShardError, match=f"give {above}/books or another of the 2 within that have one$"):
        ShardDirectory(above)
    (directory / "manifest.json").unlink()
    with pytest.raises(ShardError, match=f"^{directory}: no manifest.json, so its shards are not complete; run"):
        ShardDirectory(directory)


def test_the_directory_of_a_run_which_has_a_manifest_too_is_told_as_what_it_is(directory: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(directory / "manifest.json", run)
    (run / "config.toml").touch()
    message = f"^{run}: a training's run directory, which has its shards' manifest alone; give the shards themselves, "
    with pytest.raises(ShardError, match=message):
        ShardDirectory(run)


def test_a_damaged_shard_is_found(directory: Path) -> None:
    damage_the_shard(directory)
    opened = ShardDirectory(directory)
    for split in (None, "train"):
        with pytest.raises(ShardError, match="checksum differs"):
            opened.verify(split)  # type: ignore[arg-type]
    opened.verify("validation")  # of which there is nothing
    with pytest.raises(ShardError, match="not a readable Arrow file"):
        opened.shard(opened.manifest.shards[0])


@pytest.mark.parametrize("name", ["../" + FILE, "..", "", "a\0b", "\ud800"])
def test_a_name_that_leaves_the_directory_or_is_none_is_refused(directory: Path, name: str) -> None:
    rewrite_manifest(directory, shards=[entry_of(directory) | {"file": name}])
    with pytest.raises(ShardError, match="not a plain file name"):
        ShardDirectory(directory)


def test_a_shard_that_differs_from_its_entry_is_refused(directory: Path) -> None:
    rewrite_manifest(directory, shards=[entry_of(directory) | {"rows": 3}])
    with pytest.raises(ShardError, match="rows and tokens where the manifest says"):
        the_shard(directory)
    for told in (1, 3):
        rewrite_manifest(directory, shards=[entry_of(directory) | {"rows": 2, "pairs": {"16": told}}])
        with pytest.raises(ShardError, match=f"2 pairs for 16 where the manifest says {told}"):
            the_shard(directory)


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer/vocab.txt", FILE])
def test_what_this_user_may_not_read_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fail_on(monkeypatch, Path, "open", directory / name, errno.EACCES)
    monkeypatch.setattr(Path, "read_bytes", lambda path: path.open("rb").read())
    with pytest.raises(ShardError, match=rf"{name}: this user may not read it; ask its owner"):
        ShardDirectory(directory).verify()


def test_a_path_that_can_not_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="aaa: no such directory; make shards with"):
        ShardDirectory(tmp_path / ("a" * 300))


def test_a_shard_that_is_a_link_to_itself_is_a_mistake(directory: Path) -> None:
    (directory / FILE).unlink()
    (directory / FILE).symlink_to(FILE)
    with pytest.raises(ShardError, match=f"{FILE}: Too many levels of symbolic links; is it the folder of the shards"):
        ShardDirectory(directory)


def test_a_shard_that_is_gone_since_its_directory_was_opened_is_told(directory: Path) -> None:
    opened = ShardDirectory(directory)
    (directory / FILE).unlink()
    for read in (opened.verify, lambda: opened.shard(opened.manifest.shards[0])):
        with pytest.raises(ShardError, match=f"{FILE}: the manifest lists this shard but it is not there; copy it"):
            read()


@pytest.mark.parametrize("method", ["read_bytes", "stat", "open"])
def test_storage_that_fails_is_no_mistake_of_anybody_s(
    directory: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fail_on(monkeypatch, Path, method, number=errno.ESTALE)
    with pytest.raises(UnavailableError, match=r"^\S+: can't be read now \(Stale file handle\); give the same command"):
        ShardDirectory(directory)


def test_a_process_with_too_many_files_does_not_take_a_shard_for_damaged(directory: Path) -> None:
    opened = ShardDirectory(directory)
    with (
        too_many_open_files(),
        pytest.raises(UnavailableError, match=f"{FILE}: can't be read now .Too many open files"),
    ):
        opened.shard(opened.manifest.shards[0])
    assert len(the_shard(directory)) == 2


def test_a_process_without_address_space_does_not_take_a_shard_for_damaged(directory: Path) -> None:
    opened = ShardDirectory(directory)
    os.truncate(directory / FILE, 1 << 40)
    with limit(resource.RLIMIT_AS, 1 << 40), pytest.raises(UnavailableError, match=r"now .*Cannot allocate memory"):
        opened.shard(opened.manifest.shards[0])


def test_no_directory_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="beam run"):
        ShardDirectory(tmp_path / "none")


def test_no_damage_of_a_shard_that_nobody_verified_is_more_than_an_error(directory: Path) -> None:
    """Arrow has several kinds of errors for a header that lies, and finds some of it only where it is asked to."""
    opened = ShardDirectory(directory)
    whole = (directory / FILE).read_bytes()
    for at in range(0, len(whole), 3):
        (directory / FILE).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(ShardError):
            opened.shard(opened.manifest.shards[0]).pairs(16)


# --- What a shard may not say, though its checksum is right ---


def the_shard(directory: Path) -> Shard:
    opened = ShardDirectory(directory)
    return opened.shard(opened.manifest.shards[0])


def a_pair(**changes: int) -> Pairs:
    """The first two tokens of the first document and the first one of the second, but for some changes."""
    fields = {"row": 0, "a_begin": 0, "a_end": 2, "b_row": 1, "b_begin": 0, "b_end": 1, "is_next": 0}
    return Pairs(**{name: np.array([value], np.int32) for name, value in {**fields, **changes}.items()})


def test_both_segments_are_read_where_they_lie(directory: Path) -> None:
    shard = the_shard(directory)
    [(a, b)] = shard.segments(a_pair(), 16)
    assert (a.tolist(), b.tolist()) == ([5, 6], [8])
    spans = shard.spans(shard.pairs(16), 16)
    assert [span.tolist() for span in spans] == [[0, 0], [2, 1], [3, 1], [4, 3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": -1}, "names a row that the shard does not have"),
        ({"b_row": 2}, "names a row that the shard does not have"),
        ({"b_row": 3}, "names a row that the shard does not have"),
        ({"a_begin": -1}, "has an empty segment, or one that reaches beyond its document"),
        ({"b_begin": 2, "b_end": 1}, "has an empty segment, or one that reaches beyond its document"),
        ({"b_end": 10**6}, "has an empty segment, or one that reaches beyond its document"),
        ({"a_begin": 1, "a_end": -(1 << 31)}, "has an empty segment, or one that reaches beyond its document"),
        ({"a_begin": (1 << 31) - 1}, "has an empty segment, or one that reaches beyond its document"),
        ({"a_end": 0}, "has an empty segment, or one that reaches beyond its document"),
    ],
)
def test_a_pair_that_points_elsewhere_is_refused(directory: Path, changes: dict[str, int], message: str) -> None:
    with pytest.raises(ShardError, match=rf"{FILE}: a pair {message}"):
        the_shard(directory).segments(a_pair(**changes), 16)


@pytest.mark.parametrize(("changes", "length"), [({}, 6), ({"b_end": 0}, 4)], ids=["pair", "single"])
def test_a_pair_may_fill_the_sequence_with_its_special_tokens_and_no_more(
    directory: Path, changes: dict[str, int], length: int
) -> None:
    """[CLS] a a [SEP] b [SEP], or [CLS] a a [SEP]."""
    shard = the_shard(directory)
    assert len(shard.segments(a_pair(**changes), length)) == 1
    with pytest.raises(ShardError, match=f"a pair of more than {length - 1} tokens in the column for {length - 1}"):
        shard.segments(a_pair(**changes), length - 1)


def test_the_length_of_a_pair_is_that_of_its_segments_with_their_special_tokens(directory: Path) -> None:
    single = FALSE_PAIR | {"a_end": 3, "b_row": 0, "b_begin": 3, "b_end": 3, "is_next": True}
    rewrite_shard(directory / FILE, pairs_16=[[FALSE_PAIR, single], []])
    shard = the_shard(directory)
    lengths = shard.pairs(16, np.array([1, 0, 1])).lengths
    assert lengths.tolist() == [5, 6, 5]
    assert lengths.dtype == np.int64


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_shard_is_refused_for_every_process_would_hold_it_in_memory(
    directory: Path, compression: str
) -> None:
    rewrite_shard(directory / FILE, compression=compression)
    with pytest.raises(ShardError, match=rf"{FILE}: compressed, so that it can't be mapped"):
        the_shard(directory)


FALSE_PAIR = {"duplicate": 0, "a_begin": 0, "a_end": 2, "b_row": 1, "b_begin": 0, "b_end": 1, "is_next": False}


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("doc_id", ["a", None]),
        ("tokens", [[5, None, 7], [8]]),
        ("tokens", [[5, 6, 7, 8], None]),
        ("sentence_ends", [[1, 3], [None]]),
        ("pairs_16", [[FALSE_PAIR, None], []]),
        ("pairs_16", [[FALSE_PAIR, FALSE_PAIR | {"a_end": None}], []]),
        ("pairs_16", [[FALSE_PAIR, FALSE_PAIR | {"is_next": None}], []]),
    ],
)
def test_a_column_that_lacks_values_is_refused(directory: Path, column: str, values: list[object]) -> None:
    """Its schema says that it has them all, but Arrow believes that of anybody."""
    rewrite_shard(directory / FILE, **{column: values})
    with pytest.raises(ShardError, match=rf"{FILE}: its column {column} lacks values"):
        the_shard(directory)


def test_a_shard_of_two_batches_is_refused(directory: Path) -> None:
    """The second one's rows would be missing."""
    batch = the_shard(directory).table
    with pa.OSFile(str(directory / "two"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(0, 1))
        writer.write_batch(batch.slice(1))
    with pytest.raises(ShardError, match="two: 2 record batches where one is expected"):
        Shard(directory / "two", 10, LENGTHS)


def test_rows_that_overlap_are_refused(directory: Path) -> None:
    tokens = pa.array([5, 6, 7, 8], pa.uint16())
    rewrite_shard(directory / FILE, tokens=list_column(np.array([0, 9, 4]), tokens))
    with pytest.raises(ShardError, match=rf"{FILE}: the rows of its column tokens overlap"):
        the_shard(directory)


def test_pairs_that_overlap_are_refused(directory: Path) -> None:
    pairs = pa.array([FALSE_PAIR] * 2, PAIR)
    rewrite_shard(directory / FILE, pairs_16=list_column(np.array([0, 9, 2]), pairs))
    with pytest.raises(ShardError, match=rf"{FILE}: the rows of its column pairs_16 overlap"):
        the_shard(directory).pairs(16)


def test_pairs_of_no_row_are_refused(directory: Path) -> None:
    """Two lie there, but the rows end before the second one."""
    pairs = pa.array([FALSE_PAIR] * 2, PAIR)
    rewrite_shard(directory / FILE, pairs_16=list_column(np.array([0, 1, 1]), pairs))
    with pytest.raises(ShardError):
        the_shard(directory).segments(the_shard(directory).pairs(16), 16)


def test_strings_are_those_of_the_column_or_refused(directory: Path) -> None:
    assert the_shard(directory).text("title").to_pylist() == [None, "B"]
    rewrite_shard(directory / FILE, doc_id=pa.array([b"a", b"\xff"], pa.binary()).view(pa.string()))
    with pytest.raises(ShardError, match=rf"{FILE}: its column doc_id is not text"):
        the_shard(directory).text("doc_id")
