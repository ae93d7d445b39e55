"""What is shown to whoever may or may not be there to see it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys

# What names of files may hold, and would end a line, command a terminal, turn what follows around or not be encoded.
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def in_line(text: str) -> str:
    """Text as a part of one line, with control characters as Python's strings are written."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def tell_error(error: object, program: str | None = None) -> None:
    """Tell on stderr what is wrong, in one line, which begins with the program's name where that is given."""
    print(f"{program}: error:" if program else "error:", in_line(str(error)), file=sys.stderr)


def tell(terminal: int, text: str) -> None:
    """Write to a descriptor: who read it may have gone with the terminal, or like `tee` by the same Ctrl-C."""
    with contextlib.suppress(OSError):
        os.write(terminal, text.encode(errors="replace"))


def counted(number: int, what: str) -> str:
    """A number with its noun, in the plural where it is not one: 1 file, 1,000 files."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def print_result(text: str) -> int:
    """Print what is a command's whole work; the exit code is 2 where it is lost, but not where nobody reads on."""
    error = show(text)
    if error is None or isinstance(error, BrokenPipeError):  # who reads has seen enough, as `head` has
        return 0
    tell_error(f"standard output: {error.strerror}; send it elsewhere")
    return 2


def show(text: str) -> OSError | None:
    """Print to whom may lack a letter; returns what came in the way, of no account where the command's work is done."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails once more at its end
        return error
    return None
