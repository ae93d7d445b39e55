"""What people must not see of an address, and what they may."""

import pytest

from trainer.credentials import without_credentials


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@host:5000/x", "http://host:5000/x"),
        ("http://me@host", "http://host"),
        ("postgresql://me:pass@word@host/name", "postgresql://host/name"),
        ("postgresql://me:se/cr/et@host/name", "postgresql://host/name"),
        ("away: mysql://me:/secret@host/name, me@home", "away: mysql://host/name, me@home"),
    ],
)
def test_user_and_password_go(uri, shown):
    """A password with slashes too, as SQLAlchemy takes it."""
    assert without_credentials(uri) == shown


@pytest.mark.parametrize(
    "text",
    ["s3://bucket/a@b", "http://host:5000/a@b", "http://[::1]:5000/a@b", "sqlite:////runs/a@b/mlflow.db", "me@home"],
)
def test_an_address_without_any_stays(text):
    assert without_credentials(text) == text
