import pytest

from trainer.saving import _Task


class OddError(Exception):
    """Such as safetensors', of which nobody thought."""


@pytest.mark.parametrize(
    "error", [OddError("no room"), OSError("no room"), MemoryError("no room"), SystemExit("no room")]
)
def test_whatever_goes_wrong_in_a_thread_is_known(error):
    def work():
        raise error

    assert "no room" in _Task(work).join()


@pytest.mark.parametrize("error", [OddError(), OSError(), ValueError(), MemoryError()])
def test_an_error_without_words_is_one_too(error):
    def work():
        raise error

    assert type(error).__name__ in _Task(work).join()


def test_what_goes_well_says_nothing():
    assert _Task(lambda: None).join() is None
