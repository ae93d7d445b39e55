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
        ("postgresql+psycopg2://me:123/x@host/name", "postgresql+psycopg2://host/name"),
        ("mysql://me:a@b/c@host/name", "mysql://host/name"),
        ("http://me:se/cret@host", "http://host"),
        ("away: mysql://me:/secret@host/name, me@home", "away: mysql://host/name, me@home"),
    ],
)
def test_user_and_password_go(uri, shown):
    """A password with slashes too, as SQLAlchemy takes it."""
    assert without_credentials(uri) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a@b",
        "http://host:5000/a@b",
        "mysql://host:3306/name",
        "http://[::1]:5000/a@b",
        "sqlite:////runs/a@b/mlflow.db",
        "me@home",
    ],
)
def test_an_address_without_any_stays(text):
    assert without_credentials(text) == text
