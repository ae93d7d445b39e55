"""The examples of a task, by the parts of its data set: train, dev, dev_NAME, test, test_DATASET."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.tasks.finetuned import FineTuned

Parts = Mapping[str, Sequence[Any]]  # name -> examples


def read_parts(task: FineTuned, data: Path | None, with_test: bool, limit: int | None) -> Parts:
    """The examples of a task.

    Args:
        task: says which.
        data: folder of the files; None for the hub.
        with_test: read the test sets too.
        limit: take so many of each part at most, drawn with a fixed seed and in their order.

    Raises:
        DatasetError: something is missing, malformed or empty.
    """
    splits = task.splits if with_test else {"train": task.train, **task.dev_splits}
    return {part: _some(task.read(*split, data), limit) for part, split in splits.items()}


def read_dev(task: FineTuned, data: Path | None, limit: int | None) -> Parts:
    """The examples that a task is judged on alone; arguments and errors as read_parts."""
    return {part: _some(task.read(*split, data), limit) for part, split in task.dev_splits.items()}


def _some(examples: Sequence[Any], limit: int | None) -> Sequence[Any]:
    if limit is None or len(examples) <= limit:
        return examples
    chosen = np.random.default_rng(0).choice(len(examples), limit, replace=False)
    return [examples[i] for i in sorted(chosen)]


def without_tests(task: FineTuned, parts: Parts) -> tuple[Parts, Parts]:
    """What a task is learned from and judged on, and the test sets, which decide nothing."""
    tests = {part: examples for part, examples in parts.items() if part in task.test_splits}
    return {part: examples for part, examples in parts.items() if part not in tests}, tests


class Checksums(NamedTuple):
    """Of the examples that a task is learned from and judged on, and of those of its test sets; None where none are."""

    learned: str
    tests: str | None


def checksums_of(learned: Parts, tests: Parts) -> Checksums:
    """Those of what without_tests gives."""
    return Checksums(_checksum(learned), _checksum(tests) if tests else None)


def _checksum(parts: Parts) -> str:
    """Of all examples of all parts, wherever they come from."""
    digest = hashlib.blake2b(digest_size=16)
    for part, examples in parts.items():
        for example in examples:
            digest.update(repr((part, example)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
