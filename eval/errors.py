"""What the programs of the evaluation tell the user, and do not show as a traceback."""


class UsageError(ValueError):
    """A mistake in what was asked for or given. The message names it, its place, and what to do."""
