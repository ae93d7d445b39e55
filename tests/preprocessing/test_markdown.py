from __future__ import annotations

from preprocessing.markdown import markdown_table


def test_a_table() -> None:
    assert markdown_table([["", "n"], ["a|b", "1"], ["c", "1,000"]], numbers=(1,)) == (
        "|      |     n |\n| ---- | ----: |\n| a\\|b |     1 |\n| c    | 1,000 |\n"
    )
