"""The sample stream: every index once, the same batches at any world size, and a resume that is exact."""

import dataclasses
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch

from preprocessing.schema import ShardDirectory, ShardError
from tests.trainer.shard_factory import CLS, PAD, SEP, write_shards
from trainer.data import (
    DataConfig,
    SampleStream,
    Steps,
    evaluation_batches,
    load_steps,
    validation_stream,
)
from trainer.masking import MaskingConfig
from trainer.model import EMPTY_SLOT

LENGTH = 32


def stream(path, split="train", seed=1, **data):
    return SampleStream(
        ShardDirectory(path),
        split,
        LENGTH,
        seed=seed,
        max_predictions=4,
        masking=MaskingConfig(),
        data=DataConfig(**data),
    )


def steps_of(path, rank=0, world=1, global_batch=8, micro_batch=2, **data):
    return Steps(stream(path, **data), global_batch, micro_batch, rank, world)


def equal(left, right):
    return all(torch.equal(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))


def test_a_sample_is_the_pair_that_the_shard_holds(shards):
    samples = stream(shards)
    shard_ids, pair_ids = samples.locate(np.arange(samples.size))
    directory = ShardDirectory(shards)
    for index, shard_id, pair_id in zip(range(samples.size), shard_ids, pair_ids, strict=True):
        shard = directory.shard(directory.manifest.split("train")[shard_id])
        pair = shard.pairs(LENGTH, np.array([pair_id]))
        a = shard.document(pair.row[0])[pair.a_begin[0] : pair.a_end[0]]
        b = shard.document(pair.b_row[0])[pair.b_begin[0] : pair.b_end[0]]
        expected = [CLS, *a, SEP, *b, SEP]
        got = samples.samples(np.array([index]))
        assert got.tokens[0, : got.lengths[0]].tolist() == expected
        assert got.token_types[0, : got.lengths[0]].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert (got.tokens[0, got.lengths[0] :] == PAD).all()
        assert got.is_next[0] == pair.is_next[0]


def test_a_batch_is_the_masked_sample_with_googles_labels(shards):
    samples = stream(shards)
    indices = np.arange(10)
    plain, batch = samples.samples(indices), samples.batch(indices)
    flat = torch.from_numpy(plain.tokens).reshape(-1)
    assert torch.equal(batch.mlm_labels, flat[batch.positions])
    assert torch.equal(batch.attention_mask.sum(dim=1), torch.from_numpy(plain.lengths))
    assert batch.nsp_labels.tolist() == [0 if is_next else 1 for is_next in plain.is_next]
    assert not set(batch.mlm_labels.tolist()) & {CLS, SEP, PAD}


@pytest.mark.parametrize("shuffle_bytes", [1, 20_000, 1 << 30])
def test_an_epoch_has_every_pair_once_in_another_order_each_time(shards, shuffle_bytes):
    samples = stream(shards, shuffle_bytes=shuffle_bytes)
    epochs = [
        list(zip(*samples.locate(np.arange(epoch * samples.size, (epoch + 1) * samples.size)), strict=True))
        for epoch in range(3)
    ]
    everything = [(shard, pair) for shard, count in enumerate((21, 15, 18)) for pair in range(count)]
    assert all(sorted(epoch) == everything for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != everything


def test_a_small_shuffle_budget_reads_one_shard_after_the_other(shards):
    samples = stream(shards, shuffle_bytes=1)
    shard_ids, _ = samples.locate(np.arange(samples.size))
    assert (np.diff(shard_ids) != 0).sum() == 2


def test_indices_of_several_epochs_in_one_batch(shards):
    samples = stream(shards)
    around = np.arange(samples.size - 3, samples.size + 3)
    together = samples.locate(around)
    for i, index in enumerate(around):
        alone = samples.locate(np.array([index]))
        assert (together[0][i], together[1][i]) == (alone[0][0], alone[1][0])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_and_workers_together_see_every_index_once(shards, world, workers):
    seen = Counter(
        index
        for rank in range(world)
        for batches in load_steps(steps_of(shards, rank, world), 0, 20, workers)
        for batch in batches
        for index in batch.indices.tolist()
    )
    assert seen == Counter(range(20 * 8))


def test_every_world_size_gives_the_same_global_batches_and_masks(shards):
    def micro_batches(world, step):
        ranks = [steps_of(shards, rank, world) for rank in range(world)]
        return {steps.micro_batch_index(i): batch for steps in ranks for i, batch in enumerate(steps[step])}

    for step in (0, 3, 11):
        alone = micro_batches(1, step)
        assert sorted(alone) == [0, 1, 2, 3]
        for world in (2, 4):
            split = micro_batches(world, step)
            assert sorted(split) == sorted(alone)
            assert all(equal(split[place], alone[place]) for place in alone)


@pytest.mark.parametrize("stop", [1, 5, 19])
def test_stopping_at_any_step_and_going_on_gives_the_next_batches(shards, stop):
    whole = list(load_steps(steps_of(shards, 1, 2), 0, 20, workers=0))
    rest = list(load_steps(steps_of(shards, 1, 2), stop, 20, workers=2))
    assert len(rest) == 20 - stop
    for expected, got in zip(whole[stop:], rest, strict=True):
        assert all(equal(a, b) for a, b in zip(expected, got, strict=True))


def test_the_seed_decides_order_and_masks(shards):
    first, again, other = (stream(shards, seed=seed).batch(np.arange(8)) for seed in (1, 1, 2))
    assert equal(first, again)
    assert not equal(first, other)


def test_rows_are_as_long_as_the_longest_or_as_the_phase_says(shards):
    indices = np.arange(2)
    longest = int(stream(shards).samples(indices).lengths.max())
    assert stream(shards).batch(indices).input_ids.shape[1] == min(LENGTH, -(-longest // 8) * 8)
    fixed = stream(shards, pad_to_longest=False).batch(indices)
    assert fixed.input_ids.shape[1] == LENGTH
    assert fixed.attention_mask.sum(dim=1).max() == longest


@pytest.mark.parametrize("world", [1, 2, 4])
def test_evaluation_predicts_every_sample_once_and_gives_all_ranks_as_many_batches(shards, world):
    held_out = validation_stream(ShardDirectory(shards), LENGTH)
    ranks = [list(evaluation_batches(held_out, held_out.size, 5, rank, world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    labelled = [
        index
        for batches in ranks
        for batch in batches
        for index, label in zip(batch.indices.tolist(), batch.nsp_labels.tolist(), strict=True)
        if label != EMPTY_SLOT
    ]
    assert sorted(labelled) == list(range(held_out.size))
    for batch in (batch for batches in ranks for batch in batches):
        rows = batch.positions // batch.input_ids.shape[1]
        assert torch.equal(batch.mlm_labels == EMPTY_SLOT, (batch.nsp_labels == EMPTY_SLOT)[rows])


def test_a_length_that_the_shards_were_not_made_for(shards):
    with pytest.raises(ShardError, match=r"sequence length 64.*--sequence-lengths 64"):
        SampleStream(
            ShardDirectory(shards), "train", 64, seed=1, max_predictions=4, masking=MaskingConfig(), data=DataConfig()
        )


def test_a_pair_that_reaches_beyond_its_document_is_not_read(tmp_path):
    """A damaged or hostile shard must not be indexed blindly: negative numbers would silently wrap around."""
    path = write_shards(tmp_path / "shards", train=(3,), validation=())
    name = "shard-00000-of-00001.arrow"
    with pa.ipc.open_file(pa.OSFile(str(path / name))) as reader:
        table, schema = reader.get_batch(0), reader.schema
    pairs = table.column("pairs_32").to_pylist()
    for row in pairs:
        for pair in row:
            pair["a_begin"], pair["a_end"] = -3, 5
    columns = [*table.columns[:-1], pa.array(pairs, schema.field("pairs_32").type)]
    with pa.OSFile(str(path / name), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    with pytest.raises(ShardError, match=r"shard-00000.*beyond its document"):
        stream(path).batch(np.arange(2))
