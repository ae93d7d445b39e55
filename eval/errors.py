"""What the programs of the evaluation tell the user, and do not show as a traceback."""

import pydantic


class UsageError(ValueError):
    """A mistake in what was asked for or given. The message names it, its place, and what to do."""


def first_problem(error: pydantic.ValidationError) -> str:
    """Where in a file something is wrong, and what: the first problem of several."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
