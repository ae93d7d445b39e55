import errno
import json
import os
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file

from preprocessing.storage_errors import comes_of_passing
from trainer.optim import OptimizerConfig, build_optimizer, state_of
from trainer.sharded_state import (
    MOMENTS,
    WEIGHTS,
    Flat,
    Fragment,
    StateError,
    StateReader,
    check_files,
    file_name,
    verify_state,
    write_state,
)

SHAPES = {"words": torch.Size([5, 4]), "bias": torch.Size([3])}
KINDS = ("weights", "exp_avg", "exp_avg_sq")


def whole(kind):
    """The parameters as one row: 20 numbers of words, 3 of the bias."""
    return torch.arange(23, dtype=torch.float32) + 100 * KINDS.index(kind)


def flat(fragments, padding=0):
    """A rank's tensor of (name, begin, end) stretches."""
    rows = {"words": 0, "bias": 20}
    made, start = [], 0
    for name, begin, end in fragments:
        made.append(Fragment(start, end - begin, name, begin))
        start += end - begin
    tensors = {
        kind: torch.cat([*(whole(kind)[rows[n] + b : rows[n] + e] for n, b, e in fragments), torch.zeros(padding)])
        for kind in KINDS
    }
    return Flat(made, tensors)


# How different ranks and stages would cut the same two parameters.
CUTS = {
    "one rank": [[[("words", 0, 20)], [("bias", 0, 3)]]],
    "two ranks, one group": [[[("words", 0, 12)]], [[("words", 12, 20), ("bias", 0, 3)]]],
    "shares of each": [[[("words", 0, 10), ("bias", 0, 2)]], [[("words", 10, 20), ("bias", 2, 3)]]],
    "the end before the beginning": [[[("words", 10, 20), ("bias", 2, 3)]], [[("words", 0, 10), ("bias", 0, 2)]]],
    "a rank with nothing": [[[("words", 0, 20), ("bias", 0, 3)]], [[]]],
}


def write(directory, cut, padding=2):
    directory.mkdir(exist_ok=True)
    ranks = CUTS[cut]
    for rank, groups in enumerate(ranks):
        write_state(directory, rank, len(ranks), [flat(group, padding) for group in groups], optimizer_step=7)
    return directory


@pytest.mark.parametrize("written", CUTS)
@pytest.mark.parametrize("read", CUTS)
def test_any_cut_is_read_into_any_other(tmp_path, written, read):
    reader = StateReader(write(tmp_path, written), SHAPES)
    assert reader.optimizer_step == 7
    for groups in CUTS[read]:
        for group in groups:
            expected, empty = flat(group), flat(group)
            for tensor in empty.tensors.values():
                tensor.fill_(-1)
            reader.fill_moments(empty)
            assert all(torch.equal(empty.tensors[kind], expected.tensors[kind]) for kind in MOMENTS)
            assert (empty.tensors[WEIGHTS] == -1).all()
    weights = reader.weights()
    assert torch.equal(weights["words"], whole("weights")[:20].view(5, 4))
    assert torch.equal(weights["bias"], whole("weights")[20:])
    verify_state(tmp_path)


def test_a_rank_may_have_no_numbers_at_all(tmp_path):
    """Not even padding."""
    weights = StateReader(write(tmp_path, "a rank with nothing", padding=0), SHAPES).weights()
    assert torch.equal(weights["bias"], whole("weights")[20:])


def test_padding_is_zero_in_a_snapshot_whatever_memory_held(tmp_path):
    """Under ZeRO 3 the last rank's share of a parameter is filled up with what nobody has written."""
    live = Flat([Fragment(2, 3, "words", 0), Fragment(7, 2, "bias", 0)],
                {name: torch.full((11,), torch.nan) for name in KINDS})  # fmt: skip
    for tensor in live.tensors.values():
        tensor[2:5], tensor[7:9] = 1.0, 2.0
    copy = live.room()
    copy.take(live)
    assert copy.tensors["weights"].tolist() == [0, 0, 1, 1, 1, 0, 0, 2, 2, 0, 0]
    write_state(tmp_path, 0, 1, [copy], 1)
    live.tensors["weights"][3] = torch.inf
    copy.take(live)
    with pytest.raises(StateError, match="infinite or not numbers"):
        write_state(tmp_path, 0, 1, [copy], 1)


def test_padding_of_a_single_number_is_zero_too_in_whatever_order_fragments_are_told():
    live = Flat([Fragment(4, 2, "bias", 0), Fragment(0, 3, "words", 0)],
                {name: torch.full((7,), torch.nan) for name in KINDS})  # fmt: skip
    for tensor in live.tensors.values():
        tensor[0:3], tensor[4:6] = 1.0, 2.0
    copy = live.room()
    copy.take(live)
    assert copy.tensors["weights"].tolist() == [1, 1, 1, 0, 2, 2, 0]


def test_a_snapshot_is_not_changed_by_training():
    live = flat([("words", 0, 20), ("bias", 0, 3)])
    copy = live.room()
    copy.take(live)
    live.tensors["weights"].zero_()
    assert all(torch.equal(copy.tensors[kind], whole(kind)) for kind in KINDS)
    copy.take(live)
    assert not copy.tensors["weights"].any()
    assert len({tensor.untyped_storage().data_ptr() for tensor in copy.tensors.values()}) == 1  # pinned at once


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / file_name(1, 2)).unlink(), r"state-00001-of-00002\.safetensors is missing"),
        (lambda d: [path.unlink() for path in d.glob("state-*")], "is missing from this checkpoint"),
        (lambda d: (d / file_name(0, 2)).write_bytes(b"not a file"), "not a readable checkpoint file"),
        (lambda d: (d / file_name(0, 2)).write_bytes((d / file_name(0, 2)).read_bytes()[:-8]), "not a readable"),
    ],
)
def test_missing_and_cut_files(tmp_path, damage, message):
    damage(write(tmp_path, "shares of each"))
    with pytest.raises(StateError, match=message):
        StateReader(tmp_path, SHAPES)


def test_copies_that_people_leave_beside_the_files_are_passed_over(tmp_path):
    path = write(tmp_path, "shares of each") / file_name(0, 2)
    for name in ("state-00000-of-00002.safetensors.bak", "state-00000-of-00002 (1).safetensors",
                 "state-copy-of-00002.safetensors", "state-0-of-2.safetensors"):  # fmt: skip
        (tmp_path / name).write_bytes(path.read_bytes())
    verify_state(tmp_path)
    assert torch.equal(StateReader(tmp_path, SHAPES).weights()["bias"], whole("weights")[20:])


def test_a_name_that_tells_of_more_ranks_than_there_are_files_costs_nothing(tmp_path):
    (tmp_path / file_name(0, 99_999)).touch()
    with pytest.raises(StateError, match=r"state-00001-of-99999\.safetensors is missing from this checkpoint"):
        verify_state(tmp_path)


def test_a_checkpoint_that_can_not_be_listed_is_told_with_what_keeps_from_it(tmp_path, monkeypatch):
    with pytest.raises(StateError, match=r"nowhere: can't be read \(No such file or directory\)$"):
        verify_state(tmp_path / "nowhere")
    monkeypatch.setattr(Path, "iterdir", mock.Mock(side_effect=OSError(errno.ESTALE, os.strerror(errno.ESTALE))))
    with pytest.raises(StateError, match=r"can't be read \(Stale file handle\)$") as told:
        verify_state(tmp_path)
    assert comes_of_passing(told.value)


def test_files_of_two_numbers_of_ranks_are_no_checkpoint(tmp_path):
    """Nobody knows which of them are of this step."""
    for cut in ("one rank", "shares of each"):
        write(tmp_path, cut)
    told = r"state-00000-of-00002\.safetensors is of another number of ranks than state-00000-of-00001\.safetensors"
    with pytest.raises(StateError, match=told):
        StateReader(tmp_path, SHAPES)
    with pytest.raises(StateError, match=told):
        verify_state(tmp_path)


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path):
    path = write(tmp_path, "one rank") / file_name(0, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with pytest.raises(StateError, match="not the bytes that were written"):
        verify_state(tmp_path)
    path.with_suffix(".blake2b").unlink()
    with pytest.raises(StateError, match="its checksum is missing"):
        verify_state(tmp_path)


def test_a_link_to_what_is_no_longer_there_is_a_damaged_file(tmp_path):
    """As of a checkpoint that was moved to another disk, which is not mounted."""
    path = write(tmp_path, "one rank") / file_name(0, 1)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StateError, match="not the bytes that were written"):
        verify_state(tmp_path)
    with pytest.raises(StateError, match="not a readable checkpoint file"):
        StateReader(tmp_path, SHAPES)


@pytest.mark.parametrize("error", [
    FileNotFoundError("No such file or directory: x"),  # as safetensors says of whatever keeps it from a file
    RuntimeError("unable to open file <x> in read-only mode: Input/output error (5)"),  # torch's
])  # fmt: skip
def test_a_file_that_can_not_be_opened_for_a_moment_is_told_from_a_damaged_one(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    write(tmp_path, "one rank")
    monkeypatch.setattr("trainer.tensor_files.safe_open", fail)
    with pytest.raises(StateError, match=rf"not a readable checkpoint file \({re.escape(str(error))}\)") as raised:
        StateReader(tmp_path, SHAPES)
    assert comes_of_passing(raised.value)


def test_a_file_that_a_disk_can_not_read_is_a_damaged_one(tmp_path):
    path = write(tmp_path, "one rank") / file_name(0, 1)
    path.unlink()
    path.symlink_to("/proc/self/mem")  # whose first bytes nobody can read: an error of input and output
    with pytest.raises(StateError, match=rf"{path.name}: can't be read \(Input/output error\)"):
        verify_state(tmp_path)


def test_a_checksum_whose_bits_have_changed_is_no_checksum(tmp_path):
    """A resume passes over such a checkpoint, to the one before: any other error would end it, time and again."""
    path = write(tmp_path, "one rank") / file_name(0, 1)
    checksum = path.with_suffix(".blake2b")
    checksum.write_bytes(b"\xff" + checksum.read_bytes()[1:])
    with pytest.raises(StateError, match="its checksum is missing"):
        verify_state(tmp_path)


def test_another_models_parameters(tmp_path):
    write(tmp_path, "one rank")
    with pytest.raises(StateError, match="another model's parameters; words is in only one of the two"):
        StateReader(tmp_path, {"bias": torch.Size([3])})
    with pytest.raises(StateError, match="words is incomplete or stored more than once"):
        StateReader(tmp_path, {**SHAPES, "words": torch.Size([6, 4])})
    with pytest.raises(StateError, match="another model's parameters; more is in only one of the two"):
        StateReader(tmp_path, {**SHAPES, "more": torch.Size([1])})


@pytest.mark.parametrize("stretches", [
    [(0, 3, "bias", 0), (3, 3, "bias", 0)],
    [(0, 2, "bias", 0), (2, 2, "bias", 1)],
    [(0, 1, "bias", 0), (1, 1, "bias", 2)],
], ids=["twice", "in part twice", "with a gap"])  # fmt: skip
def test_stretches_that_are_not_the_whole_once(tmp_path, stretches):
    table = [stretches]
    save_file({f"0.{kind}": torch.zeros(6) for kind in KINDS}, tmp_path / file_name(0, 1),
              {"fragments": json.dumps(table), "optimizer_step": "1"})  # fmt: skip
    with pytest.raises(StateError, match="bias is incomplete or stored more than once"):
        StateReader(tmp_path, {"bias": torch.Size([3])})


def write_file(directory, table, changed=None, optimizer_step="1"):
    """A state file of the bias alone, whatever it says of itself, with some of its tensors changed."""
    tensors = {f"0.{kind}": torch.zeros(6) for kind in KINDS} | (changed or {})
    told = {"fragments": table, "optimizer_step": optimizer_step}
    save_file(tensors, directory / file_name(0, 1), {name: text for name, text in told.items() if text is not None})


WHOLE = '[[[0, 3, "bias", 0]]]'


@pytest.mark.parametrize("file", [
    {"table": None}, {"table": "null"}, {"table": "5"}, {"table": "[[1]]"}, {"table": '[[[0, 3, null, 0]]]'},
    {"table": '[[[0, 3, "bias"]]]'}, {"table": '[[[-1, 3, "bias", 0]]]'}, {"table": '[[["x", 3, "bias", 0]]]'},
    {"table": '[[[0, -3, "bias", 0]]]'}, {"table": "[" * 100_000}, {"table": "no JSON"},
    {"table": WHOLE, "optimizer_step": None}, {"table": WHOLE, "optimizer_step": "x"},
    {"table": WHOLE, "optimizer_step": "-1"}, {"table": WHOLE, "optimizer_step": str((1 << 24) + 1)},
], ids=str)  # fmt: skip
def test_what_is_no_table_of_stretches_is_a_damaged_file(tmp_path, file):
    write_file(tmp_path, **file)
    with pytest.raises(StateError, match=r"state-00000-of-00001\.safetensors: not a state file of ours \((frag|optim)"):
        StateReader(tmp_path, {"bias": torch.Size([3])})


@pytest.mark.parametrize(("table", "changed", "message"), [
    ('[[[5, 3, "bias", 0]]]', {}, "stretches of 0.weights lie in one another or beyond its end"),
    (f'[[[{10**30}, 3, "bias", 0]]]', {}, "stretches of 0.weights lie in one another or beyond its end"),
    ('[[[0, 2, "bias", 0], [1, 1, "bias", 2]]]', {}, "stretches of 0.weights lie in one another or beyond its end"),
    (WHOLE, {"0.exp_avg": torch.zeros(2)}, "stretches of 0.exp_avg lie in one another or beyond its end"),
    ('[[[0, 2, "bias", 0]], [[0, 1, "bias", 2]]]', {}, "the tensor 1.weights is missing"),
    (WHOLE, {"0.weights": torch.zeros(6, dtype=torch.int32)}, "0.weights is I32 of shape [6], and not a row of"),
    (WHOLE, {"0.exp_avg_sq": torch.zeros(6).half()}, "0.exp_avg_sq is F16 of shape [6], and not a row of float32"),
    (WHOLE, {"0.weights": torch.zeros(3, 2)}, "0.weights is F32 of shape [3, 2], and not a row of float32 numbers"),
])  # fmt: skip
def test_a_table_that_the_tensors_do_not_bear_out_is_a_damaged_file(tmp_path, table, changed, message):
    write_file(tmp_path, table, changed)
    with pytest.raises(StateError, match=re.escape(f"{file_name(0, 1)}: {message}")):
        StateReader(tmp_path, {"bias": torch.Size([3])})


def test_the_last_step_that_an_optimizer_counts_is_read(tmp_path):
    """In float32, where one more than it is no more: a run of more updates has it in all its checkpoints."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = build_optimizer([{"params": [weight], "weight_decay": 0.0}], OptimizerConfig(name="adamw"))
    step = state_of(optimizer, weight)["step"].fill_((1 << 24) - 1)
    for _ in range(2):
        weight.grad = torch.ones(3)
        optimizer.step()
    write_state(tmp_path, 0, 1, [flat([("words", 0, 20), ("bias", 0, 3)])], optimizer_step=int(step))
    assert StateReader(tmp_path, SHAPES).optimizer_step == 1 << 24


def test_files_of_two_steps_are_no_checkpoint(tmp_path):
    write(tmp_path, "shares of each")
    write_state(tmp_path, 1, 2, [flat(group) for group in CUTS["shares of each"][1]], optimizer_step=8)
    with pytest.raises(StateError, match="its files are of different steps; this checkpoint is damaged"):
        StateReader(tmp_path, SHAPES)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_not_read(tmp_path, value):
    write_file(tmp_path, WHOLE, {"0.weights": torch.full((6,), value)})
    with pytest.raises(StateError, match="bias is infinite or not a number; this checkpoint is damaged"):
        StateReader(tmp_path, {"bias": torch.Size([3])}).weights()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_not_written(tmp_path, kind, value):
    tensors = flat([("words", 0, 20), ("bias", 0, 3)])
    tensors.tensors[kind][7] = value
    with pytest.raises(StateError, match="weights or moments are infinite or not numbers"):
        write_state(tmp_path, 0, 1, [tensors], optimizer_step=7)
    assert not list(tmp_path.iterdir())


def test_numbers_whose_squares_are_infinite_are_numbers(tmp_path):
    tensors = flat([("words", 0, 20), ("bias", 0, 3)])
    tensors.tensors["weights"][7] = 1e30
    write_state(tmp_path, 0, 1, [tensors], optimizer_step=7)
    assert StateReader(tmp_path, SHAPES).weights()["words"].max() == torch.tensor(1e30)


def test_what_a_rank_writes_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A checkpoint's folder gets its own once all ranks have written; a power cut may follow."""
    synced = []
    monkeypatch.setattr("os.fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    write(tmp_path, "one rank")
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"state-00000-of-00001.safetensors", "state-00000-of-00001.blake2b"}
    assert {name.removeprefix(".").removesuffix(".incomplete") for name in synced} == written


def test_files_that_are_listed_are_not_looked_at_one_by_one(tmp_path, monkeypatch):
    """A file system answers for one after the other, of hundreds of ranks, while all of them wait."""
    write(tmp_path, "shares of each")
    monkeypatch.setattr("trainer.sharded_state.is_file", lambda _: 1 / 0)
    check_files(tmp_path, 2)


def test_files_that_are_not_listed_yet_are_looked_for_by_their_names(tmp_path, monkeypatch):
    write(tmp_path, "shares of each")
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([]))
    check_files(tmp_path, 2)


@pytest.mark.parametrize("lost", ["state-00001-of-00002.safetensors", "state-00001-of-00002.blake2b"])
def test_what_a_rank_did_not_write_is_missed(tmp_path, lost):
    write(tmp_path, "shares of each")
    check_files(tmp_path, 2)
    (tmp_path / lost).unlink()
    with pytest.raises(StateError, match=r"state-00001-of-00002\.safetensors or its checksum was not written"):
        check_files(tmp_path, 2)
