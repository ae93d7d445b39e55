"""A trainer that says in a file what it is doing, so that whoever kills it can tell what was cut."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer import pretrain, saving, session
from trainer.engine import Engine
from trainer.saving import Saver

PHASES = {
    b"s": "starting up",
    b"d": "waiting for data",
    b"c": "computing a step",
    b"k": "copying or committing a checkpoint",
    b"w": "computing while a checkpoint is written",
    b"e": "computing while an export is written",
    b"-": "ending",
}


def new_file(path: Path, ranks: int) -> None:
    """Nobody does anything yet."""
    path.write_bytes(b"s " * ranks)


def phase_of(path: Path, rank: int) -> str:
    """What a rank does, or did when it was killed."""
    main, beside = (bytes([byte]) for byte in path.read_bytes()[2 * rank : 2 * rank + 2])
    return PHASES[beside if main == b"c" and beside != b" " else main]


def run_pretrain_in_phases(arguments: list[str], path: Path) -> int:
    """The trainer's main; two bytes of the file for each rank, its main thread's and the one beside it."""
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    place = 2 * int(os.environ["RANK"])

    def say(offset: int, letter: bytes, then: bytes, function: Callable[..., Any]) -> Callable[..., Any]:
        def saying(*arguments: Any, **keywords: Any) -> Any:
            shared[place + offset : place + offset + 1] = letter
            try:
                return function(*arguments, **keywords)
            finally:
                shared[place + offset : place + offset + 1] = then

        return saying

    session.Session._take = say(0, b"d", b"c", session.Session._take)  # type: ignore[method-assign]
    Engine.train_step = say(0, b"c", b"c", Engine.train_step)  # type: ignore[method-assign]
    Saver.begin = say(0, b"k", b"c", Saver.begin)  # type: ignore[method-assign]
    Saver._commit = say(0, b"k", b"c", Saver._commit)  # type: ignore[method-assign]
    Saver.finish = say(0, b"k", b"-", Saver.finish)  # type: ignore[method-assign]
    Saver._clean_up_and_export = say(1, b"e", b" ", Saver._clean_up_and_export)  # type: ignore[method-assign]
    saving.write_state = say(1, b"w", b" ", saving.write_state)
    return pretrain.main(arguments)
