"""What people must not see of an address."""

import re

# A user, or a user and a password, in which slashes may stand as they are where SQLAlchemy reads it; no port and path.
_CREDENTIALS = re.compile(r"(?<=://)(?:[^/\s]*@|[^/:@\[\s]*:(?!\d+/)[^@\s]*@)")


def without_credentials(text: str) -> str:
    """A text that holds a store's URI, such as the URI itself, for people's eyes: without user and password."""
    return _CREDENTIALS.sub("", text)
