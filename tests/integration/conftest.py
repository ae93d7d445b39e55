"""What the tests of whole programs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.launching import Launched, launch


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """As launching.launch, for runs below the test's own folder; whatever the test finds, none outlives it."""
    started: list[Launched] = []

    def begin(launcher: str, run: str, steps: int, *settings: str) -> Launched:
        started.append(launch(launcher, tmp_path, tmp_path / run, steps, *settings))
        return started[-1]

    yield begin
    for launched in started:
        launched.end()
