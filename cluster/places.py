"""What the settings of all places are held to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic


def _as_text(value: Any) -> Any:
    """Numbers as they were written: TOML reads an account 1234 or a time of 90 minutes as one."""
    return str(value) if type(value) is int else value


Text = Annotated[str, pydantic.BeforeValidator(_as_text)]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_environment(variables: Mapping[str, str], ours: re.Pattern[str]) -> None:
    """See that a user's variables can be set, beside those of the job.

    Args:
        variables: the user's, by their names.
        ours: whole names that the job sets itself.

    Raises:
        ValueError: one can't.
    """
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or ours.fullmatch(name):
            raise ValueError(f"environment: {name!r} is not the name of a variable, or one that the job sets itself")
        if "\0" in value:
            raise ValueError(f"environment: {name} holds a NUL character, which no variable can")
        if not is_utf8(value):
            raise ValueError(f"environment: {name} holds {value!r}, which is not UTF-8")


def is_utf8(text: str) -> bool:
    """Whether a text can be written to a file: a command line may have other bytes in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_rank_per_gpu(setting: str, ranks: int, gpus: int) -> None:
    """See that there is a rank for each GPU, where there are GPUs.

    Args:
        setting: its name.
        ranks: its value, of a machine; 0 for one per GPU.
        gpus: of a machine.

    Raises:
        ValueError: there are more ranks, or fewer.
    """
    if gpus and ranks not in (0, gpus):
        raise ValueError(f"{ranks} ranks on {gpus} GPUs; leave {setting} at 0")
