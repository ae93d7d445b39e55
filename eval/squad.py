"""Questions about texts longer than the model: windows over the text, and the answer among all windows' scores.

As in google-research/bert, run_squad.py: convert_examples_to_features, _check_is_max_context and write_predictions.
Unlike there, pieces know the characters that they stand for: answers are cut out of the text as it was written.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from tokenizers import Encoding

from eval.encoding import Encoder, Sample
from eval.errors import UsageError
from eval.readers.examples import QuestionExample
from eval.squad_metrics import best_f1_threshold

STRIDE = 128  # tokens between the beginnings of two windows, at most
LONGEST_QUESTION = 64  # tokens; the rest is cut off
LONGEST_ANSWER = 30  # tokens
CANDIDATES = 20  # begins, ends and answers that are looked at
_MARKS = ("Mn", "Cf")  # Unicode's categories of marks without a width and of characters that format


@dataclass(frozen=True)
class Window(Sample):
    """A question with as much of its text as fits.

    Attributes:
        question: its number.
        offset: where the n tokens of text begin in the sequence.
        characters: int32 [n, 2], first character that each stands for, and the one after its last.
        widest: bool [n], whether no other window shows more of the text around the token.
    """

    question: int
    offset: int
    characters: np.ndarray
    widest: np.ndarray


class Span(NamedTuple):
    """A possible answer, with the scores of its first and its last token."""

    text: str
    begin: float
    end: float

    @property
    def score(self) -> float:
        """Of the whole."""
        return self.begin + self.end


@dataclass(frozen=True)
class Candidates:
    """What a question's windows say.

    Attributes:
        spans: the best answers, the best first and each text once; none where there is no text.
        nothing: that there is no answer, as the window says that believes it least.
    """

    spans: list[Span]
    nothing: Span

    @property
    def text(self) -> str:
        """The best answer."""
        return self.spans[0].text if self.spans else ""

    @property
    def odds(self) -> float:
        """How much better no answer scores than the best one, or than 0 where there is none."""
        return self.nothing.score - (self.spans[0].score if self.spans else 0.0)


# ---- windows --------------------------------------------------------------------------------------------------------


def windows(examples: Sequence[QuestionExample], encoder: Encoder) -> list[Window]:
    """The windows of all questions, in their order.

    Raises:
        UsageError: the encoder's sequences have no room for a text.
    """
    if encoder.max_length < LONGEST_QUESTION + 4:
        raise UsageError(
            f"sequences of {encoder.max_length} tokens have no room for a text beside a question of "
            f"{LONGEST_QUESTION} tokens; give {LONGEST_QUESTION + 4} or more by --max-length, "
            "to a model with as many positions"
        )
    contexts = list(dict.fromkeys(example.context for example in examples))
    pieces = zip(contexts, encoder.pieces(contexts), strict=True)
    texts = {context: _text(context, encoding) for context, encoding in pieces}  # of several questions each
    questions = encoder.ids([example.question for example in examples])
    return [
        window
        for number, (example, question) in enumerate(zip(examples, questions, strict=True))
        for window in _windows(number, example, question[:LONGEST_QUESTION], texts[example.context], encoder)
    ]


class _Text(NamedTuple):
    """A text of n tokens: int32 [n]; where each begins and ends, int32 [n, 2]; and the same with the marks behind."""

    ids: np.ndarray
    offsets: np.ndarray
    characters: np.ndarray


def _text(context: str, encoding: Encoding) -> _Text:
    offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
    return _Text(np.array(encoding.ids, dtype=np.int32), offsets, _with_marks(offsets, context))


def _windows(
    number: int, example: QuestionExample, question: np.ndarray, text: _Text, encoder: Encoder
) -> Iterator[Window]:
    ids, offsets, characters = text
    places = _places(len(ids), _room(encoder.max_length, len(question)))
    widest = _widest(len(ids), places)
    answer = _answer_tokens(example, offsets)  # a mark that an answer begins with is of none before it
    for window, (begin, end) in enumerate(places):
        sequence = encoder.pair(question, ids[begin:end])
        yield Window(
            sequences=(sequence,),
            targets=_targets(answer, begin, end, sequence.second),
            question=number,
            offset=sequence.second,
            characters=characters[begin:end],
            widest=widest[begin:end] == window,
        )


def _with_marks(characters: np.ndarray, text: str) -> np.ndarray:
    """Places of tokens in a text, each with the marks behind it that the tokenizer left out of it.

    These are accents that stand by themselves, which an uncased one strips, and characters that only format. Without
    them an answer would end before its last accent; google-research/bert's get_final_text keeps them too.

    Args:
        characters: [n, 2] int32, where each token begins and ends.
        text: theirs.
    """
    if text.isascii() or not len(characters):  # of zero-width characters alone no token is left
        return characters
    found, nexts = characters.copy(), [*characters[1:, 0].tolist(), len(text)]
    for token, (end, limit) in enumerate(zip(characters[:, 1].tolist(), nexts, strict=True)):
        while end < limit and unicodedata.category(text[end]) in _MARKS:
            end += 1
        found[token, 1] = end
    return found


def shortest_stride(max_length: int) -> int:
    """Tokens between two windows in sequences of so many tokens, beside the longest question."""
    return _stride(_room(max_length, LONGEST_QUESTION))


def _room(max_length: int, question: int) -> int:
    """Tokens of text beside a question of so many tokens."""
    return max_length - 3 - question


def _stride(room: int) -> int:
    """As many tokens as google has, or fewer: a window shows the whole of an answer that the one before cuts.

    google's overlap by as much from 158 tokens of text on. Where there is no room for two answers, half is shared.
    """
    return min(STRIDE, max(room - LONGEST_ANSWER, (room + 1) // 2))


def _places(length: int, room: int) -> list[tuple[int, int]]:
    """Begin and end of each window over a text, up to the first that reaches its end; an empty text has one too."""
    step = _stride(room)
    last = max(0, -(-(length - room) // step))
    return [(i * step, min(i * step + room, length)) for i in range(last + 1)]


def _widest(length: int, places: Sequence[tuple[int, int]]) -> np.ndarray:
    """Which window shows the most text around each token, the first of several: int64 [length].

    What counts is the side that shows less, and a hundredth of the window's length.
    """
    best, widest = np.full(length, -np.inf), np.zeros(length, dtype=np.int64)
    for window, (begin, end) in enumerate(places):
        left = np.arange(end - begin)
        scores = np.minimum(left, left[::-1]) + 0.01 * (end - begin)
        better = scores > best[begin:end]
        best[begin:end][better] = scores[better]
        widest[begin:end][better] = window
    return widest


def _answer_tokens(example: QuestionExample, offsets: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first answer; None where there is none, or no token stands for it."""
    if not example.answers:
        return None
    begin = example.answers[0].start
    end = begin + len(example.answers[0].text)
    inside = np.flatnonzero((offsets[:, 1] > begin) & (offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def _targets(answer: tuple[int, int] | None, begin: int, end: int, offset: int) -> tuple[int, int]:
    """The answer's tokens within the sequence of a window; [CLS] twice where the window lacks any of them."""
    if answer is None or answer[0] < begin or answer[1] >= end:
        return 0, 0
    return answer[0] - begin + offset, answer[1] - begin + offset


# ---- answers --------------------------------------------------------------------------------------------------------


def candidates(
    examples: Sequence[QuestionExample], asked: Sequence[Window], logits: Sequence[np.ndarray]
) -> list[Candidates]:
    """The best answers to each question.

    Args:
        examples: the questions.
        asked: their windows.
        logits: of each window, [S, 2]: how well each token begins an answer, and ends one.
    """
    scored: list[list[tuple[Window, np.ndarray]]] = [[] for _ in examples]
    for window, scores in zip(asked, logits, strict=True):
        scored[window.question].append((window, scores))
    return [_candidates(example.context, of_it) for example, of_it in zip(examples, scored, strict=True)]


def _candidates(context: str, scored: Sequence[tuple[Window, np.ndarray]]) -> Candidates:
    spans = [span for window, logits in scored for span in _spans(context, window, logits)]
    distinct: dict[str, Span] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        distinct.setdefault(span.text, span)
    nothing = min((Span("", float(logits[0, 0]), float(logits[0, 1])) for _, logits in scored), key=lambda n: n.score)
    return Candidates(list(distinct.values())[:CANDIDATES], nothing)


def _spans(context: str, window: Window, logits: np.ndarray) -> Iterator[Span]:
    """All that begin and end at one of the window's best places."""
    inside = logits[window.offset : window.offset + len(window.characters)]  # [S, 2] -> [n, 2]
    begins, ends = (np.argsort(-inside[:, column], kind="stable")[:CANDIDATES] for column in (0, 1))
    for begin in begins[window.widest[begins]]:
        for end in ends[(begin <= ends) & (ends < begin + LONGEST_ANSWER)]:
            text = context[window.characters[begin, 0] : window.characters[end, 1]]
            yield Span(text, float(inside[begin, 0]), float(inside[end, 1]))


def tune_threshold(found: Mapping[str, Candidates], references: Mapping[str, Sequence[str]]) -> float:
    """The odds above which there is no answer, such that F1 is best (paper, section 4.3)."""
    answers = {key: candidates.text for key, candidates in found.items()}
    return best_f1_threshold(answers, references, {key: candidates.odds for key, candidates in found.items()})


def n_best(found: Candidates, may_be_nothing: bool) -> list[dict[str, Any]]:
    """The best answers with their probabilities, as google-research/bert writes them to nbest_predictions.json."""
    spans = [*found.spans, found.nothing] if may_be_nothing or not found.spans else found.spans
    probabilities = softmax([span.score for span in spans])
    return [
        {"text": span.text, "probability": float(share), "start_logit": span.begin, "end_logit": span.end}
        for span, share in zip(spans, probabilities, strict=True)
    ]
