"""Shell scripts from templates. Every value that a template prints is quoted, unless it is shell already."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from trainer.files import write_atomically


class _Shell(str):
    """Text that is shell already: the user's own lines, or our own words."""

    __slots__ = ()


def write_script(file: Path, template: str, values: dict[str, Any]) -> None:
    """Write a script, whole or not at all.

    Args:
        file: where; a value by that name too.
        template: its name within this package, such as "slurm/pretrain.sbatch.j2".
        values: by their names there; a list is the words of a command.
    """
    write_atomically(file, _environment().get_template(template).render({"file": file, **values}))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(  # noqa: S701  no HTML: what is printed is quoted for the shell
        loader=jinja2.PackageLoader("cluster", ""),
        undefined=jinja2.StrictUndefined,
        finalize=_quote,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"shell": _Shell, "lines": _lines}
    return environment


def _quote(value: Any) -> str:
    """What stands for a value in a shell script."""
    if isinstance(value, _Shell):
        return value
    return shlex.join(map(str, value)) if isinstance(value, list) else shlex.quote(str(value))


def _lines(words: Sequence[str]) -> _Shell:
    """A long command, each option on a line of its own."""
    first, *rest = map(str, words)
    quoted = ((" \\\n    " if word.startswith("--") else " ") + shlex.quote(word) for word in rest)
    return _Shell(shlex.quote(first) + "".join(quoted))
