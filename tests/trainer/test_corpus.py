"""The shard directories of a run: what they must agree on, what identifies them, and damage found before training."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
import torch

from preprocessing.schema import MANIFEST, ShardDirectory, ShardError, checksum
from tests.trainer.shard_factory import MASK, write_shards
from trainer.config import load_recipe
from trainer.corpus import as_begun, directory_checksums, open_corpus, train_stream
from trainer.data import DataConfig, SampleStream
from trainer.loading import LoaderError
from trainer.masking import MaskingConfig
from trainer.naming import tell_apart


def test_one_directory_is_identified_by_its_own_manifest(shards):
    corpus = open_corpus([str(shards)])
    assert corpus.manifest == (shards / MANIFEST).read_text()
    assert corpus.manifest_blake2b == checksum(shards / MANIFEST) == ShardDirectory(shards).manifest_blake2b


def test_several_are_identified_by_all_their_manifests_in_order(shards, books, tmp_path):
    corpus = open_corpus([str(shards), str(books)])
    found = json.loads(corpus.manifest)["directories"]
    assert [entry["manifest_blake2b"] for entry in found] == [checksum(path / MANIFEST) for path in (shards, books)]
    assert [entry["manifest"] for entry in found] == [
        json.loads((path / MANIFEST).read_text()) for path in (shards, books)
    ]
    written = tmp_path / "manifest.json"
    written.write_text(corpus.manifest, encoding="utf-8")
    assert checksum(written) == corpus.manifest_blake2b
    assert directory_checksums(written) == [checksum(path / MANIFEST) for path in (shards, books)]
    assert directory_checksums(shards / MANIFEST) == [checksum(shards / MANIFEST)]
    assert open_corpus([str(books), str(shards)]).manifest_blake2b != corpus.manifest_blake2b


def with_manifest(directory, target, **entries):
    """A copy of a shard directory whose manifest has other entries."""
    shutil.copytree(directory, target)
    manifest = json.loads((target / MANIFEST).read_text()) | entries
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return target


def test_a_run_keeps_its_manifest_where_the_same_shards_are_made_again(shards, books, tmp_path):
    again = with_manifest(shards, tmp_path / "again", created_by={"pyarrow": "99"}, statistics={"contamination": {}})
    manifest = tmp_path / "manifest.json"
    for begun_with, made_again in (([shards], [again]), ([books, shards], [books, again])):
        begun, now = open_corpus([*map(str, begun_with)]), open_corpus([*map(str, made_again)])
        assert as_begun(begun, manifest) is begun  # a new run
        manifest.write_text(begun.manifest, encoding="utf-8")
        assert as_begun(begun, manifest) is begun
        kept = as_begun(now, manifest)
        assert (kept.manifest, kept.manifest_blake2b) == (begun.manifest, begun.manifest_blake2b)
        assert (kept.directories, kept.sources) == (now.directories, now.sources)
        manifest.unlink()


def test_other_shards_are_not_those_that_a_run_was_begun_with(shards, books, tmp_path):
    manifest, twice = tmp_path / "manifest.json", {"pairs": {"duplicates": 2}}
    given = [[books], [shards, books], [with_manifest(shards, tmp_path / "twice", options=twice)]]
    for content in ((shards / MANIFEST).read_bytes(), b"", b"[]", b'{"directories": [{}]}', b"[" * 100_000, b"\xff"):
        manifest.write_bytes(content)
        for corpus in (open_corpus([*map(str, directories)]) for directories in given):
            assert as_begun(corpus, manifest) is corpus


def test_where_they_lie_is_no_part_of_it(shards, books, tmp_path):
    there = open_corpus([str(shards), str(books)])
    here = open_corpus([str(shards), str(books)], cache=tmp_path / "cache")
    assert here.manifest == there.manifest
    assert all(directory.path.is_relative_to(tmp_path) for directory in here.directories)


def test_directories_that_do_not_go_together(shards, books, tmp_path):
    other = write_shards(tmp_path / "other", vocab_size=70)
    with pytest.raises(ShardError, match=r"shards and \S*other were made with different vocabularies"):
        open_corpus([str(shards), str(books), str(other)])
    again = tmp_path / "again"
    shutil.copytree(shards, again)
    with pytest.raises(ShardError, match=r"shards and \S*again are the same shards; name them once"):
        open_corpus([str(shards), str(again)])
    with pytest.raises(ShardError, match=r"^s3://bucket/shards: not a local directory; set data\.cache_dir"):
        open_corpus(["s3://ada:hunter2@bucket/shards"])


@pytest.mark.parametrize("other", ["words", "case"])
def test_vocabularies_of_one_size_may_differ_all_the_same(shards, books, tmp_path, other):
    folder = tmp_path / "other"
    shutil.copytree(books, folder)
    manifest, vocabulary = json.loads((folder / MANIFEST).read_text()), folder / "tokenizer" / "vocab.txt"
    if other == "words":
        vocabulary.write_text(vocabulary.read_text().replace("word", "term"))
        manifest["vocabulary"]["blake2b"] = checksum(vocabulary)
    else:
        manifest["vocabulary"]["lowercase"] = False
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match=r"shards and \S*other were made with different vocabularies"):
        open_corpus([str(shards), str(folder)])


def test_a_password_within_a_url_is_no_part_of_a_name(shards, tmp_path):
    fsspec.filesystem("memory").put(str(shards), "/ada:hunter2@bucket/shards", recursive=True)
    corpus = open_corpus(["memory://ada:hunter2@bucket/shards"], cache=tmp_path)
    assert (corpus.name, corpus.short_name(corpus.directories[0])) == ("memory://bucket/shards", "shards")


def test_a_directory_that_is_named_by_a_link_is_called_as_the_link_is(shards, books, tmp_path):
    links = [tmp_path / "wiki", tmp_path / "novels"]
    for link, directory in zip(links, (shards, books), strict=True):
        link.symlink_to(directory)
    corpus = open_corpus([*map(str, links)])
    assert [corpus.short_name(directory) for directory in corpus.directories] == ["wiki", "novels"]
    assert [corpus.source(directory) for directory in corpus.directories] == [*map(str, links)]


def test_the_names_of_many_directories_are_told_apart_once(shards, books, monkeypatch):
    """A validation asks for the name of each, and all ranks wait."""
    told = []
    monkeypatch.setattr("trainer.corpus.tell_apart", lambda paths: told.append(paths) or tell_apart(paths))
    corpus = open_corpus([str(shards), str(books)])
    assert [corpus.short_name(directory) for directory in corpus.directories * 2] == ["shards", "books"] * 2
    assert len(told) == 1


class _Met(Exception):
    """What all ranks would get is known only when each has told its own."""


def verify(corpus, size):
    """What each rank of a world raises, None for nothing; and how many shards each has compared."""
    told = []

    def meet(mine):
        told.append(mine)
        raise _Met

    for rank in range(size):
        with contextlib.suppress(_Met):
            corpus.verify(SimpleNamespace(rank=rank, size=size, gather=meet))
    raised = []
    for rank in range(size):
        try:
            corpus.verify(SimpleNamespace(rank=rank, size=size, gather=lambda mine: told))
            raised.append(None)
        except (ShardError, LoaderError) as error:
            raised.append(error)
    return raised, [len(mine) for mine in told]


@pytest.mark.parametrize(("world", "shares"), [(1, [4]), (2, [2, 2]), (5, [1, 1, 1, 1, 0])])
def test_every_shard_is_compared_by_one_rank_and_all_hear_of_a_damaged_one(shards, tmp_path, world, shares):
    damaged = tmp_path / "damaged"
    shutil.copytree(shards, damaged)
    corpus = open_corpus([str(damaged)])
    assert verify(corpus, world) == ([None] * world, shares)
    content = bytearray((damaged / "shard-00001-of-00003.arrow").read_bytes())
    content[-9] ^= 1
    (damaged / "shard-00001-of-00003.arrow").write_bytes(content)
    (damaged / "validation-shard-00000-of-00001.arrow").unlink()
    raised, _ = verify(corpus, world)
    assert {type(error) for error in raised} == {ShardError}
    (told,) = set(map(str, raised))
    assert re.fullmatch(
        r"\S+/shard-00001\S+: checksum differs from the manifest; copy it again, or make the shards again with "
        r"--overwrite; also wrong: \S+/validation-shard-00000\S+",
        told,
    )


def test_storage_that_fails_for_one_rank_is_told_by_all_as_no_damage(shards, monkeypatch):
    corpus = open_corpus([str(shards)])

    may = Path.open

    def fail(path, *arguments):
        if "validation" in path.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return may(path, *arguments)

    monkeypatch.setattr(Path, "open", fail)
    raised, _ = verify(corpus, 2)
    assert {type(error) for error in raised} == {LoaderError}
    (told,) = set(map(str, raised))
    assert told.endswith("validation-shard-00000-of-00001.arrow: can't be read now (Input/output error); give the same "
                         "command again")  # fmt: skip


def test_phases_with_weights_of_their_own_read_one_stream_on(recipe, shards, books):
    """Phases of another length have another stream."""
    of_phases = [(4, 32, (0.5, 0.5)), (2, 16, ()), (3, 32, ()), (1, 32, (0.0, 1.0))]
    settings = load_recipe(recipe, ["data.weights=[0.25, 0.75]"])
    phases = [
        dataclasses.replace(settings.phases[0], steps=steps, sequence_length=length, weights=weights)
        for steps, length, weights in of_phases
    ]
    settings = dataclasses.replace(settings, phases=phases)
    corpus = open_corpus([str(shards), str(books)])
    streams = [train_stream(settings, phase, corpus) for phase in phases if phase.sequence_length == 32]
    for stream in streams:
        taken = [[read.samples for read in stream.reads(*ends)] for ends in ((0, 32), (32, 56), (56, 64))]
        assert taken == [[16, 16], [6, 18], [0, 8]]
    with pytest.raises(ShardError, match=r"no pairs for sequence length 16"):
        train_stream(settings, phases[1], corpus)


@pytest.mark.parametrize("left_to_right", [False, True])
def test_what_is_trained_on_is_what_the_recipe_says(recipe, shards, left_to_right):
    special = ["model.is_decoder=true", "train.next_sentence=false"] if left_to_right else ["masking.probability=0.5"]
    settings = load_recipe(recipe, ["train.seed=7", *special])
    phase = dataclasses.replace(settings.phases[0], max_predictions=3)
    stream = train_stream(settings, phase, open_corpus([str(shards)]))
    expected = SampleStream(
        ShardDirectory(shards), "train", 32, seed=7, max_predictions=3, masking=MaskingConfig(probability=0.5),
        data=DataConfig(), causal=left_to_right,
    )  # fmt: skip
    ours, theirs = (each.batch(np.arange(6)) for each in (stream, expected))
    assert torch.equal(ours.tokens.input_ids, theirs.tokens.input_ids)
    assert torch.equal(ours.mlm_labels, theirs.mlm_labels)
    assert (MASK in ours.tokens.input_ids) == (not left_to_right)
