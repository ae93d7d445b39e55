"""Sequences laid end to end: nothing lost, nothing added but what fills up, and tables that hold every token once."""

from dataclasses import replace
from itertools import pairwise

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.packing import PackedTokens, Table

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


def packed(lengths: list[int], longest: int | None = None) -> PackedTokens:
    ids = torch.arange(100, 100 + sum(lengths))
    return replace(PackedTokens.from_flat(ids, ids % 2, torch.tensor(lengths)), longest=longest or max(lengths))


def test_sequences_and_padded_rows_give_the_same():
    ids, types = [[5, 6, 7], [8], [9, 10]], [[0, 0, 1], [0], [0, 1]]
    tokens = PackedTokens.from_sequences(ids, types)
    assert tokens.input_ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert tokens.token_type_ids.tolist() == [0, 0, 1, 0, 0, 1]
    assert tokens.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert tokens.bounds.tolist() == [0, 3, 4, 6]
    assert tokens.firsts.tolist() == [0, 3, 4]
    assert tokens.lengths.tolist() == [3, 1, 2]
    assert tokens.longest == PackedTokens.from_sequences(ids[::-1]).longest == 3
    assert PackedTokens.from_sequences(ids).token_type_ids.tolist() == [0] * 6
    padded = torch.tensor([[5, 6, 7], [8, 0, 0], [9, 10, 0]])
    padded_types = torch.tensor([[0, 0, 1], [0, 0, 0], [0, 1, 0]])
    again = PackedTokens.from_padded(padded, padded_types, torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]]))
    assert all(torch.equal(getattr(tokens, n), getattr(again, n)) for n in ("input_ids", "token_type_ids", "bounds"))
    assert torch.equal(tokens.pad(tokens.input_ids), padded)
    assert tokens.pad(tokens.input_ids, -1)[1].tolist() == [8, -1, -1]
    assert tokens.pad(torch.ones(6, 2, 5)).shape == (3, 3, 2, 5)
    assert tokens.pad(torch.ones(6))[1].tolist() == [1, 0, 0]


def test_a_batch_goes_to_a_device_as_a_whole():
    tokens = packed([3, 1]).to(torch.device("cpu"))
    assert tokens.bounds.tolist() == [0, 3, 4]
    there = tokens.to(torch.device("meta"))
    tensors = (there.input_ids, there.token_type_ids, there.position_ids, there.bounds)
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 4
    assert there.longest == 3


@given(LENGTHS)
def test_groups_hold_every_token_once_and_little_padding(lengths):
    tokens = packed(lengths)
    assert sorted(rows_of(tokens.tables)) == list(range(sum(lengths)))
    for table in tokens.tables:
        for row in rows_by_sequence(table):
            assert row == list(range(row[0], row[0] + len(row)))
            assert len(row) >= 0.8 * table.rows.shape[1]
        assert table.real is None or not table.rows[~table.real].any(), "0 for padding"
    widths = [table.rows.shape[1] for table in tokens.tables]
    assert all(after < 0.8 * before for before, after in pairwise(widths)), "two tables where one would do"


@given(LENGTHS, st.data())
def test_tables_of_a_selection_hold_each_sequence_s_own(lengths, data):
    tokens = packed(lengths)
    rows = sorted(data.draw(st.lists(st.integers(0, sum(lengths) - 1), min_size=1, max_size=30)))
    selected = tokens.select(torch.tensor(rows))
    assert sorted(rows_of(selected.tables)) == list(range(len(rows)))
    bounds = tokens.bounds.tolist()
    for table, group in zip(selected.tables, tokens.groups, strict=True):
        for places, sequence in zip(rows_by_sequence(table), group, strict=True):
            expected = [row for row in rows if bounds[sequence] <= row < bounds[sequence + 1]]
            assert [rows[place] for place in places] == expected


def rows_by_sequence(table: Table) -> list[list[int]]:
    real = torch.ones_like(table.rows) if table.real is None else table.real
    return [row[mask.bool()].tolist() for row, mask in zip(table.rows, real, strict=True)]


def rows_of(tables: list[Table]) -> list[int]:
    return [row for table in tables for row in table.real_rows.tolist()]


@given(LENGTHS, st.sampled_from([8, 64, 79, 80, 96]))
@example([40, 40, 37], 118)  # 119 more, as three of almost the longest
def test_rounding_up_adds_what_is_missing_and_as_many_sequences_in_any_case(lengths, multiple):
    tokens = packed(lengths, longest=40)
    rounded = tokens.round_up(multiple)
    size = len(rounded.input_ids)
    assert size % multiple == 0
    added = -(-(multiple - 1) // 39)
    assert added <= size - sum(lengths) < multiple + added
    for name in ("input_ids", "token_type_ids", "position_ids"):
        values = getattr(rounded, name)
        assert (values.dtype, len(values)) == (torch.int64, size)
        assert torch.equal(values[: sum(lengths)], getattr(tokens, name))
    assert len(rounded.lengths) == len(lengths) + added
    assert rounded.lengths.tolist()[: len(lengths)] == lengths
    assert int(rounded.bounds[-1]) == size
    assert 1 <= rounded.lengths[len(lengths) :].min() <= rounded.lengths.max() <= 40
    again = PackedTokens.from_flat(rounded.input_ids, rounded.token_type_ids, rounded.lengths)
    assert torch.equal(rounded.position_ids[sum(lengths) :], again.position_ids[sum(lengths) :])
