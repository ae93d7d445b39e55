"""The sample stream: every index once, the same batches at any world size, and a resume that is exact."""

import dataclasses
import os
import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from preprocessing.schema import Shard, ShardDirectory, ShardError
from tests.rewriting import read_column, rewrite_shard
from tests.trainer.shard_factory import CLS, MASK, PAD, SEP, write_shards
from trainer import data
from trainer.data import (
    DataConfig,
    Reads,
    SampleStream,
    evaluation_batches,
    validation_stream,
)
from trainer.loading import StepReader, Steps
from trainer.masking import MaskingConfig, mask_tokens
from trainer.model import EMPTY_SLOT

LENGTH = 32


def stream(path, split="train", seed=1, causal=False, **data):
    return SampleStream(
        ShardDirectory(path),
        split,
        LENGTH,
        seed=seed,
        max_predictions=4,
        masking=MaskingConfig(),
        data=DataConfig(**data),
        causal=causal,
    )


def steps_of(path, rank=0, world=1, global_batch=8, micro_batch=2, **data):
    return Steps(stream(path, **data), global_batch, micro_batch, rank, world)


def equal(left, right):
    """Whether two batches, or two parts of them, have the same tensors."""
    values = [(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left)]
    return all(
        a == b if isinstance(a, int) else torch.equal(a, b) if isinstance(a, torch.Tensor) else equal(a, b)
        for a, b in values
    )


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
    real = np.arange(plain.tokens.shape[1]) < plain.lengths[:, None]
    unmasked = torch.from_numpy(plain.tokens[real])
    assert torch.equal(batch.mlm_labels, unmasked[batch.positions])
    others = torch.ones(len(unmasked), dtype=torch.bool).index_fill_(0, batch.positions, False)
    assert torch.equal(batch.tokens.input_ids[others], unmasked[others])
    assert torch.equal(batch.tokens.token_type_ids, torch.from_numpy(plain.token_types[real]))
    assert batch.tokens.position_ids.tolist() == [place for length in plain.lengths for place in range(length)]
    assert batch.lengths.tolist() == plain.lengths.tolist()
    assert batch.nsp_labels.tolist() == [0 if is_next else 1 for is_next in plain.is_next]
    assert not set(batch.mlm_labels.tolist()) & {CLS, SEP, PAD}


def check_masks(samples, indices, **expected):
    """The tokens of a batch are those of its samples as these settings mask them."""
    plain, batch = samples.samples(indices), samples.batch(indices)
    masked = mask_tokens(
        plain.tokens, ~np.isin(plain.tokens, (CLS, SEP, PAD)), plain.lengths, indices, vocab_size=64, mask_id=MASK,
        **expected,
    )  # fmt: skip
    real = np.arange(plain.tokens.shape[1]) < plain.lengths[:, None]
    assert torch.equal(batch.tokens.input_ids, torch.from_numpy(masked.tokens[real]))


def test_masks_are_drawn_by_the_stream_s_own_settings(shards):
    own = {"seed": 2, "max_predictions": 5}
    masking = MaskingConfig(probability=0.4, mask=0.3, random=0.6)
    samples = SampleStream(ShardDirectory(shards), "train", LENGTH, masking=masking, data=DataConfig(), **own)
    check_masks(samples, np.arange(40, 52), config=masking, **own)


def test_masks_of_validation_are_always_the_same(tmp_path):
    """By the standard, 15 % of however many tokens, and by a seed of their own."""
    shards = write_shards(tmp_path / "shards", sequence_lengths=(512,), train=(), validation=(60,))
    samples = validation_stream(ShardDirectory(shards), 512)
    indices = np.arange(samples.size)
    assert samples.samples(indices).lengths.max() >= 137  # 21 predictions, one more than most phases allow
    check_masks(samples, indices, config=MaskingConfig(), seed=0, max_predictions=512)


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


@pytest.mark.parametrize("shards_at_once", [0, 1])
def test_a_small_shuffle_budget_reads_one_shard_after_the_other(shards, shards_at_once):
    size = max(entry.bytes for entry in ShardDirectory(shards).manifest.split("train"))
    samples = stream(shards, shuffle_bytes=size * shards_at_once or 1)
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
        for batches in StepReader(steps_of(shards, rank, world), 0, 20, workers)
        for batch in batches
        for index in batch.indices.tolist()
    )
    assert seen == Counter(range(20 * 8))


def test_a_rank_with_a_gpu_has_loader_processes_unless_told_otherwise():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert (DataConfig().processes(cpu), DataConfig().processes(gpu)) == (0, 4)
    assert (DataConfig(workers=2).processes(cpu), DataConfig(workers=0).processes(gpu)) == (2, 0)


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


@pytest.mark.parametrize("data", [{}, {"skip": ((9, 12), (60, 61))}])
def test_lengths_are_known_before_a_token_is_read(shards, data):
    samples, indices = stream(shards, **data), np.arange(5, 120)
    assert samples.lengths(indices).tolist() == samples.samples(indices).lengths.tolist()


def test_the_micro_batches_of_a_step_have_about_as_many_tokens(shards):
    """Without padding a rank would wait for another one that has got more."""
    steps, spreads = steps_of(shards, global_batch=24, micro_batch=6), []
    for step in range(5):
        found = steps[step]
        assert sorted(torch.cat([batch.indices for batch in found]).tolist()) == list(range(24 * step, 24 * step + 24))
        tokens = [len(batch.tokens.input_ids) for batch in found]
        in_order = steps.stream.lengths(np.arange(24 * step, 24 * step + 24)).reshape(4, 6).sum(axis=1)
        spreads.append((np.ptp(tokens), np.ptp(in_order)))
    assert all(dealt < before / 2 for dealt, before in spreads), spreads


def test_a_step_of_one_micro_batch_is_read_as_it_comes(shards):
    (batch,) = steps_of(shards, global_batch=8, micro_batch=8)[3]
    assert batch.indices.tolist() == list(range(24, 32))


def test_micro_batches_go_to_the_ranks_in_turn(shards):
    """The engine knows by its place which one of a rank is the last."""
    places = [[steps_of(shards, rank, 2).micro_batch_index(i) for i in range(2)] for rank in range(2)]
    assert places == [[0, 2], [1, 3]]


@pytest.mark.parametrize("stop", [1, 5, 19])
def test_stopping_at_any_step_and_going_on_gives_the_next_batches(shards, stop):
    whole = list(StepReader(steps_of(shards, 1, 2), 0, 20, workers=0))
    rest = list(StepReader(steps_of(shards, 1, 2), stop, 20, workers=2))
    assert len(rest) == 20 - stop
    for expected, got in zip(whole[stop:], rest, strict=True):
        assert all(equal(a, b) for a, b in zip(expected, got, strict=True))


def test_the_seed_decides_order_and_masks(shards):
    first, again, other = (stream(shards, seed=seed).batch(np.arange(8)) for seed in (1, 1, 2))
    assert equal(first, again)
    assert not equal(first, other)


def test_tokens_may_be_filled_up_to_a_multiple_that_predicts_nothing(shards):
    indices = np.arange(5)
    plain, filled = stream(shards).batch(indices), stream(shards, token_multiple=64).batch(indices)
    tokens = len(plain.tokens.input_ids)
    assert len(filled.tokens.input_ids) == -(-(tokens + 3) // 64) * 64  # LENGTH is 32
    assert len(filled.positions) == len(filled.mlm_labels) == -(-len(plain.positions) // 8) * 8
    assert len(filled.nsp_labels) == len(filled.tokens.lengths) == 5 + 3
    assert torch.equal(filled.tokens.input_ids[:tokens], plain.tokens.input_ids)
    assert torch.equal(filled.lengths, plain.lengths)
    labels, added = filled.mlm_labels.split([len(plain.mlm_labels), len(filled.mlm_labels) - len(plain.mlm_labels)])
    assert torch.equal(labels, plain.mlm_labels)
    assert (added == EMPTY_SLOT).all()
    assert filled.nsp_labels.tolist() == [*plain.nsp_labels.tolist(), *[EMPTY_SLOT] * 3]


def test_what_fills_up_asks_at_tokens_that_nobody_reads(shards):
    """A kernel has room for as many queries of a sequence as it has tokens; more would run into the next one's."""
    for multiple in (256, 4096):
        samples = stream(shards, token_multiple=multiple)
        for first in range(0, 40, 5):
            filled = samples.batch(np.arange(first, first + 5))
            read = torch.cat([filled.positions, filled.tokens.firsts.long()])
            assert len(read.unique()) == len(read)


def test_left_to_right_every_token_predicts_the_next_one_of_its_sample(shards):
    indices = np.arange(6)
    plain = stream(shards).samples(indices)
    batch = stream(shards, causal=True).batch(indices)
    rows = [row[:length].tolist() for row, length in zip(plain.tokens, plain.lengths, strict=True)]
    assert batch.tokens.input_ids.tolist() == [token for row in rows for token in row]  # nothing is masked
    assert batch.mlm_labels.tolist() == [token for row in rows for token in row[1:]]
    assert batch.tokens.input_ids[batch.positions].tolist() == [token for row in rows for token in row[:-1]]


def test_a_batch_tells_the_longest_that_a_sequence_may_be_and_not_what_it_happens_to_hold(shards):
    """Kernels and graphs are made for one."""
    assert {stream(shards).batch(np.array([index])).tokens.longest for index in range(5)} == {LENGTH}


def test_a_batch_goes_to_a_device_with_all_but_its_indices(shards):
    """Which only messages need."""
    batch = stream(shards).batch(np.arange(3)).to(torch.device("meta"))
    places = {**vars(batch), **vars(batch.tokens)}
    assert {name for name, value in places.items() if torch.is_tensor(value) and not value.is_meta} == {"indices"}


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_evaluation_predicts_every_sample_once_and_gives_all_ranks_as_many_batches(shards, world):
    held_out = validation_stream(ShardDirectory(shards), LENGTH)
    ranks = [list(evaluation_batches(held_out, np.arange(held_out.size), 5, rank, world)) for rank in range(world)]
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
        assert torch.equal(batch.mlm_labels == EMPTY_SLOT, (batch.nsp_labels == EMPTY_SLOT)[batch.sequences])


def mixed(shards, books, split="train", **data):
    directories = [ShardDirectory(shards), ShardDirectory(books)]
    masking, data = MaskingConfig(), DataConfig(**data)
    return SampleStream(directories, split, LENGTH, seed=1, max_predictions=4, masking=masking, data=data)


def places(samples, first, last):
    """(shard, pair) of each sample; the shards 0 to 2 are those of `shards`, 3 and 4 those of `books`."""
    return list(zip(*(array.tolist() for array in samples.locate(np.arange(first, last))), strict=True))


WIKI = {(shard, pair) for shard, count in enumerate((21, 15, 18)) for pair in range(count)}
BOOKS = {(shard, pair) for shard, count in enumerate((21, 24), start=3) for pair in range(count)}


def test_directories_without_weights_are_read_as_one_corpus(shards, books):
    samples = mixed(shards, books)
    assert samples.size == 54 + 45
    for epoch in range(3):
        seen = places(samples, epoch * 99, (epoch + 1) * 99)
        assert sorted(seen) == sorted(WIKI | BOOKS)
        for half in (seen[:50], seen[50:]):  # evenly spread
            assert 0 < sum(place in BOOKS for place in half) - 20 < 5


def test_weighted_directories_give_their_share_and_each_pair_once_in_their_own_epochs(shards, books):
    seen = places(mixed(shards, books, weights=(0.25, 0.75)), 0, 400)
    wiki, others = ([place for place in seen if place in directory] for directory in (WIKI, BOOKS))
    assert (len(wiki), len(others)) == (100, 300)
    assert set(wiki[:54]) == WIKI
    for epoch in range(6):
        assert set(others[epoch * 45 : (epoch + 1) * 45]) == BOOKS
    assert others[:45] != others[45:90]


def test_weights_may_change_on_the_way_and_no_pair_comes_again_before_all_of_its_directory_have(shards, books):
    masking, data = MaskingConfig(), DataConfig()
    samples = SampleStream(
        [ShardDirectory(shards), ShardDirectory(books)], "train", LENGTH, seed=1, max_predictions=4, masking=masking,
        data=data, stretches=[(40, (1.0, 0.0)), (50, (0.2, 0.8))],
    )  # fmt: skip
    seen = places(samples, 0, 90)
    assert all(place in WIKI for place in seen[:40])
    of_books = [place for place in seen[40:] if place in BOOKS]
    assert len(of_books) == 40
    assert len(set(seen)) == 90
    assert [(read.directory.path, read.samples) for read in samples.reads(40, 90)] == [(shards, 10), (books, 40)]
    assert [read.epochs for read in samples.reads(0, 90)] == [50 / 54, 40 / 45]


def test_how_often_a_text_is_read_is_told_where_an_epoch_has_it_several_times(shards):
    directory = ShardDirectory(shards)
    plain = Reads(directory, 1_350, 25.0)
    assert plain.describe("wiki/") == "1,350 samples from wiki/ (25.00 epochs)"
    told = [Reads(directory, 1, epochs).describe("x") for epochs in (0.0, 0.00123, 0.099, 0.1, 1234.5)]
    expected = ("0.00", "0.0012", "0.099", "0.10", "1234.50")
    assert told == [f"1 samples from x ({epochs} epochs)" for epochs in expected]
    for duplicates, readings in ((2, "50.00"), (5, "125.00")):
        options = {"pairs": {"duplicates": duplicates}}
        directory.manifest = dataclasses.replace(directory.manifest, options=options)
        told = f"1,350 samples from wiki/ (25.00 epochs, {readings} readings of each text)"
        assert plain.describe("wiki/") == told


def test_of_many_shards_only_some_are_mapped_at_a_time_however_many_directories_they_are_in(shards, books, monkeypatch):
    """Linux lets a process map 65,530 files, and each takes memory."""
    expected = mixed(shards, books).batch(np.arange(99))
    monkeypatch.setattr(data, "_MAPPED", 2)
    samples = mixed(shards, books)
    assert equal(samples.batch(np.arange(99)), expected)
    assert len(samples._shards) == 2
    assert equal(samples.batch(np.arange(99)), expected)
    documents = [samples._shard(number).document(0).tolist() for number in (0, 1, 2, 0, 2, 1)]  # 0 to 2 are of shards
    assert documents[:3] == [documents[3], documents[5], documents[4]]
    assert len(samples._shards) == 2


def test_a_stream_can_be_handed_to_another_process(shards, books):
    """As a DataLoader of one's own does whose processes are not forked."""
    samples = mixed(shards, books)
    expected = samples.batch(np.arange(9))
    assert equal(pickle.loads(pickle.dumps(samples)).batch(np.arange(9)), expected)


def test_another_directory_leaves_the_order_of_the_first_as_it_is(shards, books):
    alone = places(stream(shards), 0, 100)
    together = [place for place in places(mixed(shards, books, weights=(1, 1)), 0, 200) if place in WIKI]
    assert together == alone


def test_a_mixed_sample_is_the_pair_that_its_own_directory_holds(shards, books):
    samples = mixed(shards, books)
    index = next(i for i, (shard, _) in enumerate(places(samples, 0, 99)) if shard == 4)
    shard_id, pair_id = places(samples, index, index + 1)[0]
    directory = ShardDirectory(books)
    shard = directory.shard(directory.manifest.split("train")[shard_id - 3])
    pair = shard.pairs(LENGTH, np.array([pair_id]))
    expected = shard.document(pair.row[0])[pair.a_begin[0] : pair.a_end[0]]
    assert samples.samples(np.array([index])).tokens[0, 1 : 1 + len(expected)].tolist() == expected.tolist()


def test_every_world_size_gives_the_same_mixture(shards, books):
    samples = mixed(shards, books, weights=(3, 1))

    def global_batch(world):
        ranks = [Steps(samples, 8, 2, rank, world) for rank in range(world)]
        return [batch for _, batch in sorted((steps.micro_batch_index(i), batch) for steps in ranks
                                             for i, batch in enumerate(steps[5]))]  # fmt: skip

    for world in (2, 4):
        assert all(map(equal, global_batch(world), global_batch(1)))


def test_validation_has_the_held_out_samples_of_all_directories_whatever_the_weights(shards, books, tmp_path):
    nothing_held_out = write_shards(tmp_path / "shards", validation=(), seed=9)
    held_out = validation_stream([ShardDirectory(path) for path in (shards, nothing_held_out, books)], LENGTH)
    assert held_out.size == 12 + 6
    assert len(set(places(held_out, 0, 18))) == 18


def test_directories_that_can_not_be_mixed_as_asked(shards, books, tmp_path):
    with pytest.raises(ShardError, match=r"weights \[1, 1, 1\] for 2 shard directories; give data\.weights, or phases"):
        mixed(shards, books, weights=(1, 1, 1))
    longer = write_shards(tmp_path / "longer", sequence_lengths=(64,))
    with pytest.raises(ShardError, match=r"longer: no pairs for sequence length 32, only for \[64\]"):
        mixed(shards, longer)
    empty = write_shards(tmp_path / "empty", train=(), seed=9)
    assert mixed(shards, empty).size == 54
    with pytest.raises(ShardError, match=r"empty: the train part has no pairs of length 32"):
        mixed(shards, empty, weights=(1, 1))
    for weights in ((1.0, 0.0), (1.0, -1.0), (1.0, float("nan"))):
        with pytest.raises(ValueError, match=r"data\.weights must be positive"):
            DataConfig(weights=weights)


def test_skipped_samples_are_empty_and_all_others_stay_as_they_were(shards):
    indices = np.arange(8)
    plain, skipping = stream(shards).batch(indices), stream(shards, skip=((2, 4), (7, 100))).batch(indices)
    assert skipping.indices.tolist() == plain.indices.tolist()
    for row in range(8):
        theirs, ours = ((batch.sequences == row).nonzero().flatten() for batch in (plain, skipping))
        words, expected = (
            batch.tokens.input_ids[batch.tokens.bounds[row] : batch.tokens.bounds[row + 1]].tolist()
            for batch in (skipping, plain)
        )
        if row in (2, 3, 7):
            assert words == [CLS, SEP]
            assert skipping.nsp_labels[row] == EMPTY_SLOT
            assert (skipping.mlm_labels[ours] == EMPTY_SLOT).all()
        else:
            assert words == expected
            assert skipping.nsp_labels[row] == plain.nsp_labels[row]
            assert skipping.mlm_labels[ours].tolist() == plain.mlm_labels[theirs].tolist()


def test_left_to_right_the_first_token_of_a_sample_is_its_own_and_not_the_last_one_s(shards):
    """It has something to predict, which a skipped neighbour must neither take away nor keep."""
    indices = np.arange(3)
    plain = stream(shards, causal=True).batch(indices)
    assert [(plain.sequences == row).sum() for row in range(3)] == (plain.lengths - 1).tolist()
    skipping = stream(shards, causal=True, skip=((1, 2),)).batch(indices)
    rows = skipping.sequences
    assert (skipping.mlm_labels[rows == 1] == EMPTY_SLOT).all()
    assert skipping.mlm_labels[rows != 1].tolist() == plain.mlm_labels[plain.sequences != 1].tolist()


@pytest.mark.parametrize("unit", ["token", "word", "span"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_whole_micro_batch_may_be_skipped(shards, unit, causal):
    samples = SampleStream(
        ShardDirectory(shards), "train", LENGTH, seed=1, max_predictions=4, masking=MaskingConfig(unit=unit),
        data=DataConfig(skip=((0, 8),)), causal=causal,
    )  # fmt: skip
    batch = samples.batch(np.arange(4))
    assert (batch.mlm_labels == EMPTY_SLOT).all()
    assert (batch.nsp_labels == EMPTY_SLOT).all()


@pytest.mark.parametrize("skip", [((3, 3),), ((-1, 3),), ((5, 2),)])
def test_ranges_to_skip_that_are_none(skip):
    with pytest.raises(ValueError, match=r"data\.skip must be pairs"):
        DataConfig(skip=skip)


def test_a_length_that_the_shards_were_not_made_for(shards):
    with pytest.raises(ShardError, match=r"sequence length 64.*--sequence-lengths 64"):
        SampleStream(
            ShardDirectory(shards), "train", 64, seed=1, max_predictions=4, masking=MaskingConfig(), data=DataConfig()
        )


def test_a_pair_that_reaches_beyond_its_document_is_not_read(tmp_path):
    """A damaged or hostile shard must not be indexed blindly: negative numbers would silently wrap around."""
    path = write_shards(tmp_path / "shards", train=(3,), validation=())
    shard = path / "shard-00000-of-00001.arrow"
    pairs = read_column(shard, "pairs_32")
    rewrite_shard(shard, pairs_32=[[pair | {"a_begin": -3, "a_end": 5} for pair in row] for row in pairs])
    with pytest.raises(ShardError, match=r"shard-00000.*beyond its document.*samples 0, 1$"):
        stream(path).batch(np.arange(2))
    assert (stream(path, skip=((0, 2),)).batch(np.arange(2)).mlm_labels == EMPTY_SLOT).all()  # it is not even looked at


def test_a_damaged_pair_that_is_held_out_is_not_to_be_skipped(tmp_path):
    """data.skip would leave out good samples of training under the same numbers."""
    path = write_shards(tmp_path / "shards")
    shard = path / "validation-shard-00000-of-00001.arrow"
    pairs = read_column(shard, "pairs_32")
    rewrite_shard(shard, pairs_32=[[pair | {"a_begin": -3, "a_end": 5} for pair in row] for row in pairs])
    with pytest.raises(ShardError, match=r"beyond its document") as found:
        validation_stream(ShardDirectory(path), 32).batch(np.arange(2))
    assert "data.skip" not in str(found.value)


def test_a_token_that_the_model_does_not_have_never_reaches_it(tmp_path):
    """A device would end in an error that names nothing."""
    path = write_shards(tmp_path / "shards", train=(3,), validation=())
    shard = path / "shard-00000-of-00001.arrow"
    rewrite_shard(shard, tokens=[[64 for _ in row] for row in read_column(shard, "tokens")])
    with pytest.raises(ShardError, match=r"shard-00000\S+: a token that the vocabulary does not have.*samples 0, 1$"):
        stream(path).batch(np.arange(2))


def test_a_message_names_samples_by_their_places_in_the_stream(shards, monkeypatch):
    """Those are what data.skip takes, and not places in the batch."""

    def broken(*_):
        raise ShardError("a broken pair")

    monkeypatch.setattr(Shard, "segments", broken)
    with pytest.raises(ShardError, match=r"samples 40$"):
        stream(shards).batch(np.array([40]))


@pytest.mark.parametrize("damaged", ["tokens", "pairs_32"])
def test_a_message_names_the_samples_of_the_shard_that_is_damaged_and_no_others(tmp_path, damaged):
    path = write_shards(tmp_path / "shards", train=(3, 3), validation=())
    shard = path / "shard-00001-of-00002.arrow"
    rows = read_column(shard, damaged)
    foreign = [[64 if damaged == "tokens" else each | {"a_begin": -3, "a_end": 5} for each in row] for row in rows]
    rewrite_shard(shard, **{damaged: foreign})
    samples = stream(path)
    indices = np.arange(samples.size)
    wrong = indices[samples.locate(indices)[0] == 1].tolist()
    with pytest.raises(ShardError, match=rf"shard-00001\S+: .* samples {', '.join(map(str, wrong))}$"):
        samples.batch(indices)
    assert 0 < len(wrong) < samples.size


def test_a_manifest_that_tells_of_more_pairs_than_a_shard_has(tmp_path):
    path = write_shards(tmp_path / "shards", train=(3,), validation=())
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"32": 9', '"32": 90'))
    with pytest.raises(ShardError, match=r"shard-00000\S+: 9 pairs for 32 where the manifest says 90; "):
        stream(path).batch(np.arange(2))


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_shard_that_was_cut_or_vanished_before_it_was_needed(tmp_path, damage):
    path = write_shards(tmp_path / "shards")
    samples = stream(path)
    for file in path.glob("shard-*.arrow"):
        os.truncate(file, 1000) if damage == "cut" else file.unlink()
    message = {"cut": "not a readable Arrow file", "gone": "the manifest lists this shard but it is not there"}[damage]
    with pytest.raises(ShardError, match=rf"shard-0000\d-of-00003\.arrow: {message}"):
        samples.batch(np.arange(4))


@pytest.mark.parametrize("size", [84, 60])
def test_a_manifest_that_tells_of_another_size_of_the_vocabulary(tmp_path, size):
    path = write_shards(tmp_path / "shards", vocab_size=64)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"size": 64', f'"size": {size}'))
    with pytest.raises(ShardError, match=rf"manifest\.json: a vocabulary of {size} entries, but vocab\.txt has 64"):
        stream(path)
