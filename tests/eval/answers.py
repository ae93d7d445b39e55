"""Questions with made-up answers and predictions, the same wherever they are made: what scorers are compared on."""

from __future__ import annotations

import random
from dataclasses import dataclass

_WORDS = (
    "a", "an", "the", "The", "AN", "Norman", "norman", "conquest", "1066", "U.S.", "U.S", "don't", "dont", "co-op",
    "op", "Beyoncé", "Beyonce\u0301", "İstanbul", "straße", "—", "–", "...", "!", "“quoted”", "'quoted'", "100%", "$5",
    "5", "東京", "서울", "서울특별시", "《춘향전》", "(1990년)", "the\u00a0end", "theatre", "tab\tbed",
)  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """Predictions and references by id, and how likely each question has no answer."""

    predictions: dict[str, str]
    references: dict[str, list[str]]
    no_answer: dict[str, float]


def made_up(count: int, seed: int, unanswerable: float) -> Answers:
    """Predictions are right, nearly right, wrong or empty; probabilities lean to the truth, and often tie."""
    draw = random.Random(seed)
    made = Answers({}, {}, {})
    for number in range(count):
        key = f"q{number}"
        has_answer = draw.random() >= unanswerable
        golds = [_phrase(draw) for _ in range(draw.randrange(1, 5))] if has_answer else []
        made.references[key] = golds
        made.predictions[key] = _prediction(draw, golds)
        made.no_answer[key] = round(min(1.0, max(0.0, draw.gauss(0.4 if has_answer else 0.6, 0.3))), 1)
    return made


def _phrase(draw: random.Random) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(draw.randrange(1, 5)))


def _prediction(draw: random.Random, golds: list[str]) -> str:
    kind = draw.randrange(4)
    if kind == 0:
        return ""
    if kind == 1 or not golds:
        return _phrase(draw)
    return draw.choice(golds) if kind == 2 else f"{draw.choice(golds)} {_phrase(draw)}"
