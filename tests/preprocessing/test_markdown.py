from __future__ import annotations

import pytest

from preprocessing.markdown import markdown_table, plain


def test_a_table() -> None:
    assert markdown_table([["", "n"], ["a|b", "1"], ["c", "1,000"]], numbers=(1,)) == (
        "|      |     n |\n| ---- | ----: |\n| a\\|b |     1 |\n| c    | 1,000 |\n"
    )
    assert markdown_table([["a"], ["b"]]) == "| a   |\n| --- |\n| b   |\n", "a rule has three strokes at least"


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("![q](http://x/y.png) [MASK]", "![q]\\(http://x/y.png) [MASK]"),
        ("*b* and `c`", "\\*b\\* and \\`c\\`"),
        ("_demo and __init__", "\\_demo and \\_\\_init\\_\\_"),
        ("<b>&lt;", "\\<b>\\&lt;"),
        ("</b> <!-- <? &#60;", "\\</b> \\<!-- \\<? \\&#60;"),
        ("a\\*", "a\\\\\\*"),
        ("a\\~", "a\\\\~"),
        ("a\n\n# b\x1b[2J", "a\\n\\n# b\\x1b[2J"),
    ],
)
def test_what_would_be_read_as_a_mark_is_escaped(text: str, markdown: str) -> None:
    assert plain(text) == markdown


@pytest.mark.parametrize(
    "text", ["squad_v1 exact_match", "2 * 3 _ 4", "C:\\data", "LTR & No NSP", "a < b", "[MASK] (1)", "-1.2 ± 0.3", "#1"]
)
def test_what_is_no_mark_stays_readable(text: str) -> None:
    assert plain(text) == text
