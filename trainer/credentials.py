"""What people must not see of an address."""

import re


def without_credentials(text: str) -> str:
    """A text that holds a store's URI, such as the URI itself, for people's eyes: without user and password."""
    return re.sub(r"(?<=://)[^/\s]*@", "", text)
