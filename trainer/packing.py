"""Sequences laid end to end, so that nothing is computed for padding.

B sequences, S the longest, T tokens of all of them, D anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

_FULLEST = 0.8  # the shortest sequence of a group has at least this share of the longest one's tokens


@dataclass(frozen=True)
class Table:
    """Tokens of some sequences as a small padded table.

    Attributes:
        rows: int64 [G, S], where each token lies among all of them; 0 for padding.
        real: bool [G, S], false for padding; None where there is none.
    """

    rows: Tensor
    real: Tensor | None

    @cached_property
    def real_places(self) -> Tensor:
        """int64 [R], which of the G*S places of the table hold a token."""
        real = torch.ones_like(self.rows) if self.real is None else self.real
        return real.flatten().nonzero().squeeze(1)

    @cached_property
    def real_rows(self) -> Tensor:
        """int64 [R], which of the tokens these are."""
        return self.rows.flatten()[self.real_places]


@dataclass(frozen=True)
class PackedTokens:
    """A batch of B sequences as T tokens without padding between.

    Attributes:
        input_ids: int64 [T].
        token_type_ids: int64 [T], 0 in the first segment and 1 in the second.
        position_ids: int64 [T], places within the sequence, from 0.
        bounds: int32 [B + 1]; sequence b is tokens bounds[b] up to, not including, bounds[b + 1].
        longest: no sequence has more tokens.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    bounds: Tensor
    longest: int

    @classmethod
    def from_sequences(cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> PackedTokens:
        """Lay sequences end to end.

        Args:
            ids: tokens of each sequence.
            types: token types of each; None for zeros.
        """
        lengths = torch.tensor([len(sequence) for sequence in ids])
        flat = torch.tensor([token for sequence in ids for token in sequence])
        kinds = torch.tensor([kind for sequence in types for kind in sequence]) if types else torch.zeros_like(flat)
        return cls.from_flat(flat, kinds, lengths)

    @classmethod
    def from_padded(cls, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> PackedTokens:
        """Take the padding out of [B, S] tensors; ``attention_mask`` is true, from the left, where a token is real."""
        mask = attention_mask.bool()
        return cls.from_flat(input_ids[mask], token_type_ids[mask], mask.sum(dim=1))

    @classmethod
    def from_flat(cls, input_ids: Tensor, token_type_ids: Tensor, lengths: Tensor) -> PackedTokens:
        """From [T], [T] and int64 [B], the number of tokens of each sequence."""
        bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        positions = torch.arange(len(input_ids), device=lengths.device) - bounds[:-1].repeat_interleave(lengths)
        return cls(input_ids, token_type_ids, positions, bounds.int(), int(lengths.max()))

    def round_up(self, multiple: int) -> PackedTokens:
        """Make T a multiple, so that a GPU meets few shapes, by tokens of sequences that nobody reads.

        As many sequences are added whatever is missing, of 1 to ``longest`` tokens: each begins at one of its own.

        Args:
            multiple: 2 or more.
        """
        added = filling_sequences(multiple, self.longest)
        missing = added + -(len(self.input_ids) + added) % multiple
        lengths = torch.full((added,), missing // added)
        lengths[: missing % added] += 1
        zeros = torch.zeros(missing, dtype=torch.int64)
        filling = PackedTokens.from_flat(zeros, zeros, lengths)
        return replace(
            self,
            input_ids=torch.cat([self.input_ids, filling.input_ids]),
            token_type_ids=torch.cat([self.token_type_ids, filling.token_type_ids]),
            position_ids=torch.cat([self.position_ids, filling.position_ids]),
            bounds=torch.cat([self.bounds, len(self.input_ids) + filling.bounds[1:]]),
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> PackedTokens:
        """With what a function makes of each tensor."""
        ids, types, places, bounds = map(function, self.tensors)
        return PackedTokens(ids, types, places, bounds, self.longest)

    def to(self, device: torch.device) -> PackedTokens:
        """The same tokens on a device."""
        return self.map(lambda tensor: send(tensor, device))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that the model reads."""
        return self.input_ids, self.token_type_ids, self.position_ids, self.bounds

    @property
    def firsts(self) -> Tensor:
        """int32 [B], where each sequence begins: its [CLS]."""
        return self.bounds[:-1]

    @property
    def lengths(self) -> Tensor:
        """int32 [B]."""
        return self.bounds.diff()

    def pad(self, values: Tensor, padding: float = 0.0) -> Tensor:
        """[T, ...] -> [B, S, ...], with ``padding`` after the end of each sequence.

        By the numbers of places, not by a mask: how many places that has, the host would wait for.
        """
        places = torch.arange(len(values), device=values.device, dtype=self.bounds.dtype)
        sequences = torch.searchsorted(self.bounds[1:], places, right=True)
        padded = values.new_full((len(self.bounds) - 1, self.longest, *values.shape[1:]), padding)
        padded[sequences, self.position_ids] = values
        return padded

    def select(self, rows: Tensor) -> Selection:
        """Some of the tokens, int64 [R] in ascending order."""
        return Selection(rows, torch.searchsorted(rows, self.bounds.long()).int(), self)

    @cached_property
    def groups(self) -> list[list[int]]:
        """The sequences in groups of about one length, for kernels that want tables. Empty ones are in none."""
        lengths = self.lengths.tolist()
        groups: list[list[int]] = []
        for b in sorted((b for b, length in enumerate(lengths) if length), key=lambda b: -lengths[b]):
            if not groups or lengths[b] < _FULLEST * lengths[groups[-1][0]]:
                groups.append([])
            groups[-1].append(b)
        return groups

    @cached_property
    def tables(self) -> list[Table]:
        """A table for each group."""
        return _tables(self.bounds, self.groups)


@dataclass(frozen=True)
class Selection:
    """Some of the tokens, those whose last hidden state somebody reads.

    Attributes:
        rows: int64 [R], ascending.
        bounds: int32 [B + 1]; of sequence b are rows[bounds[b]] up to, not including, rows[bounds[b + 1]].
        tokens: of which they are some.
    """

    rows: Tensor
    bounds: Tensor
    tokens: PackedTokens

    @cached_property
    def tables(self) -> list[Table]:
        """A table for each group of the tokens' sequences; its rows are places in ``rows``."""
        return _tables(self.bounds, self.tokens.groups)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device while it computes: from memory that may be paged out, the copy would wait until it is idle."""
    return (tensor.pin_memory() if device.type == "cuda" and tensor.is_cpu else tensor).to(device, non_blocking=True)


def filling_sequences(multiple: int, longest: int) -> int:
    """How many sequences of up to ``longest`` tokens PackedTokens.round_up adds."""
    return -(-(multiple - 1) // (longest - 1))


def put(place: Tensor, tensor: Tensor) -> None:
    """Copy into a tensor of a device, as ``send`` does."""
    place.copy_(tensor.pin_memory() if place.is_cuda and tensor.is_cpu else tensor, non_blocking=True)


def _tables(bounds: Tensor, groups: list[list[int]]) -> list[Table]:
    places = bounds.tolist()
    return [_table([(places[b], places[b + 1]) for b in group], bounds.device) for group in groups]


def _table(spans: list[tuple[int, int]], device: torch.device) -> Table:
    begins, ends = torch.tensor(spans, device=device).t()[:, :, None]  # [G, 1] each
    rows = begins + torch.arange(max(end - begin for begin, end in spans), device=device)  # [G, S]
    real = rows < ends
    return Table(rows, None) if bool(real.all()) else Table(rows.where(real, 0), real)
