"""What people must not see of an address."""

import re

# A user, or a user and a password, in which slashes may stand as they are where SQLAlchemy reads it. Digits and a slash
# are a port and a path; of a database they may be a password's, and are taken for one.
_CREDENTIALS = re.compile(
    r"((?:postgresql|mysql|mssql)(?:\+\w+)?://)[^/:@\[\s]*:\S*@|(://)(?:[^/\s]*@|[^/:@\[\s]*:(?!\d+/)[^@\s]*@)"
)


def without_credentials(text: str) -> str:
    """A text that holds a store's URI, such as the URI itself, for people's eyes: without user and password."""
    return _CREDENTIALS.sub(r"\1\2", text)
