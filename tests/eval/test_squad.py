"""Windows over a text, and answers out of their scores, by the rules of google-research/bert's run_squad.py."""

import collections
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.encoding import Encoder
from eval.readers import squad as reader
from eval.readers.examples import Answer, QuestionExample
from eval.squad import (
    CANDIDATES,
    LONGEST_ANSWER,
    LONGEST_QUESTION,
    STRIDE,
    Candidates,
    Span,
    Window,
    _places,
    _widest,
    candidates,
    n_best,
    tune_threshold,
    windows,
)
from eval.squad_metrics import squad_v1, squad_v2
from preprocessing.tokenization import SPECIAL_TOKENS, build_tokenizer, load_tokenizer
from tests.eval.minilm import MINILM

TEXT = " ".join(f"w{i}" for i in range(400))
TOKENIZER = build_tokenizer([*SPECIAL_TOKENS, *(f"w{i}" for i in range(400)), "where", "ä", "x", ","], lowercase=False)


def question(context: str = TEXT, answer: str | None = "w200 w201", text: str = "where", **changes) -> QuestionExample:
    answers = () if answer is None else (Answer(answer, context.index(answer)),)
    return replace(QuestionExample("q", text, context, answers), **changes)


def test_google_s_constants() -> None:
    """doc_stride, max_query_length, max_answer_length and n_best_size."""
    assert (STRIDE, LONGEST_QUESTION, LONGEST_ANSWER, CANDIDATES) == (128, 64, 30, 20)


def google_spans(length: int, room: int) -> list[tuple[int, int]]:
    """The loop of convert_examples_to_features."""
    spans, start = [], 0
    while start < length:
        size = min(length - start, room)
        spans.append((start, start + size))
        if start + size == length:
            break
        start += min(size, STRIDE)
    return spans


@given(st.integers(1, 2000), st.integers(STRIDE + LONGEST_ANSWER, 400))
def test_windows_lie_where_googles_do(length: int, room: int) -> None:
    assert _places(length, room) == google_spans(length, room)


@given(st.integers(1, 600), st.integers(1, 400))
def test_some_window_shows_the_whole_of_every_answer_that_two_can_share(length: int, room: int) -> None:
    places = _places(length, room)
    assert (places[0][0], places[-1][1]) == (0, length)
    longest = min(LONGEST_ANSWER, room // 2 + 1, length)
    for begin in range(length - longest + 1):
        assert any(first <= begin and begin + longest <= end for first, end in places)


@given(st.integers(1, 1000), st.integers(50, 400))
def test_a_token_counts_where_google_counts_it(length: int, room: int) -> None:
    places = google_spans(length, room)
    for token in range(0, length, 7):
        best, best_score = None, None
        for number, (begin, end) in enumerate(places):  # _check_is_max_context
            if begin <= token < end:
                score = min(token - begin, end - 1 - token) + 0.01 * (end - begin)
                if best_score is None or score > best_score:
                    best, best_score = number, score
        assert _widest(length, places)[token] == best


def test_a_long_text_costs_by_its_length_and_not_by_its_square() -> None:
    places = _places(80_000, 361)
    tracemalloc.start()
    _widest(80_000, places)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(places) > 600
    assert peak < 40 * 80_000  # bytes


def test_a_text_with_several_questions_is_there_once() -> None:
    first, second = windows([question("w5 w6", "w5"), question("w5 w6", "w6")], Encoder(TOKENIZER, 80))
    assert np.shares_memory(first.characters, second.characters)


def test_an_empty_text_has_a_window() -> None:
    [window] = windows([question("", None)], Encoder(TOKENIZER, 80))
    assert (window.sequences[0].ids.tolist(), window.targets) == ([2, TOKENIZER.token_to_id("where"), 3, 3], (0, 0))


def test_sequences_and_targets() -> None:
    found = windows([question()], Encoder(TOKENIZER, 204))  # room for 200 tokens beside the question
    assert [w.offset for w in found] == [3, 3, 3]
    assert [w.characters.shape for w in found] == [(200, 2), (200, 2), (144, 2)]
    shown = [[TOKENIZER.id_to_token(i) for i in w.sequences[0].ids[3:-1]] for w in found]
    assert [(tokens[0], tokens[-1]) for tokens in shown] == [("w0", "w199"), ("w128", "w327"), ("w256", "w399")]
    assert [w.targets for w in found] == [(0, 0), (3 + 200 - 128, 3 + 201 - 128), (0, 0)]
    assert [w.question for w in found] == [0, 0, 0]
    counting = [np.flatnonzero(w.widest) + 128 * number for number, w in enumerate(found)]
    assert np.concatenate(counting).tolist() == list(range(400))  # each token in one window
    assert [tokens[-1] for tokens in counting] == [163, 291, 399]


def test_an_answer_that_a_window_cuts_is_none_there() -> None:
    found = windows([question(answer="w199 w200")], Encoder(TOKENIZER, 204))
    assert [w.targets for w in found] == [(0, 0), (3 + 199 - 128, 3 + 200 - 128), (0, 0)]


def test_an_answer_is_where_the_data_set_says_and_not_where_its_text_comes_first() -> None:
    [shown] = windows([question("w5 w6 w5 w7", answers=(Answer("w5", 6),), answer=None)], Encoder(TOKENIZER, 80))
    assert shown.targets == (3 + 2, 3 + 2)


@pytest.mark.parametrize(
    ("context", "answer", "pieces"),
    [("(a,x", "a", (1, 1)), ("(a,bc", "(a,b", (0, 3)), ("(\u200fa,x", "\u200fa", (1, 1))],
)
def test_an_answer_has_the_pieces_that_it_shares_a_character_with(
    context: str, answer: str, pieces: tuple[int, int]
) -> None:
    """None that only touch it, and the whole of one that it ends in, as "Japan" does in "Japanese".

    Nor one before it, where it begins with a mark that a tokenizer leaves out, as those from right to left may.
    """
    tokenizer = build_tokenizer([*SPECIAL_TOKENS, "a", "bc", "x", ",", "("], lowercase=False)
    [shown] = windows([question(context, answer)], Encoder(tokenizer, 80))
    assert shown.targets == (shown.offset + pieces[0], shown.offset + pieces[1])


def test_no_answer_and_none_known() -> None:
    assert {w.targets for w in windows([question(answer=None)], Encoder(TOKENIZER, 204))} == {(0, 0)}
    long = windows([question(text="w1 " + "where " * 100)], Encoder(TOKENIZER, 204))
    assert {w.offset for w in long} == {LONGEST_QUESTION + 2}
    assert {TOKENIZER.id_to_token(w.sequences[0].ids[1]) for w in long} == {"w1"}


def test_sequences_without_room() -> None:
    with pytest.raises(
        ValueError, match="sequences of 67 tokens have no room for a text beside a question of 64 tokens"
    ):
        windows([question()], Encoder(TOKENIZER, 67))


def test_real_answers_are_where_the_targets_say(real_data) -> None:
    examples = reader.read(real_data, "dev-v1.1")[:1000]
    found = windows(examples, Encoder(load_tokenizer(MINILM), 384))
    texts = collections.defaultdict(set)
    for window in found:
        if window.targets != (0, 0):
            begin, end = (window.characters[target - window.offset] for target in window.targets)
            texts[window.question].add(examples[window.question].context[begin[0] : end[1]])
    cut = [i for i, e in enumerate(examples) if texts[i] != {e.answers[0].text}]
    assert len(cut) <= 20  # where an answer begins or ends within a piece, such as "Japan" of "Japanese"
    assert all(examples[i].answers[0].text in text for i in cut for text in texts[i])


@pytest.mark.parametrize("length", [240, 128])  # several windows for many, and for nearly all
def test_a_model_that_knows_the_answers_scores_nearly_all(real_data, length: int) -> None:
    """Windows, widest contexts and choice of answers lose nothing but what pieces can't express."""
    examples = reader.read(real_data, "dev-v1.1")[:1000]
    encoder = Encoder(load_tokenizer(MINILM), length)
    found = windows(examples, encoder)
    generator = np.random.default_rng(0)
    logits = []
    for window in found:
        scores = generator.normal(size=(window.size, 2))
        known = window.targets != (0, 0) and window.widest[window.targets[0] - window.offset]
        scores[list(window.targets), [0, 1]] += 20 if known else 0
        logits.append(scores)
    answers = {e.id: c.text for e, c in zip(examples, candidates(examples, found, logits), strict=True)}
    scores = squad_v1(answers, {e.id: [a.text for a in e.answers] for e in examples})
    assert scores["exact_match"] > 97
    assert scores["f1"] > 98


def window(tokens: int, widest: np.ndarray | None = None) -> Window:
    """Over the first words of "a b c d ...", one character each."""
    characters = np.array([(2 * i, 2 * i + 1) for i in range(tokens)])
    return Window((), (), 0, 3, characters, np.ones(tokens, bool) if widest is None else widest)


LETTERS = " ".join("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@pytest.mark.parametrize("seed", range(5))
def test_the_best_answers_of_all_windows(seed: int) -> None:
    """Against every span there is: both windows show the whole text, the first counts for its first half."""
    generator = np.random.default_rng(seed)
    first_half = np.arange(15) < 7
    shown = [window(15, first_half), window(15, ~first_half)]
    logits = [generator.normal(size=(3 + 15 + 1, 2)) for _ in shown]
    logits[0][0], logits[1][0] = (0, 4), (2, 1)  # of no answer, whose begin and end count together too
    [found] = candidates([question(LETTERS, None)], shown, logits)
    spans = [
        Span(LETTERS[2 * begin : 2 * end + 1], scores[3 + begin, 0], scores[3 + end, 1])
        for half, scores in zip(shown, logits, strict=True)
        for begin in range(15)
        for end in range(begin, 15)
        if half.widest[begin]
    ]
    expected = sorted(spans, key=lambda span: -span.score)[:CANDIDATES]
    assert [s.text for s in found.spans] == [s.text for s in expected]
    assert found.text == expected[0].text
    assert found.nothing.score == min(scores[0].sum() for scores in logits)
    assert found.odds == found.nothing.score - expected[0].score


def test_answers_are_not_too_long_and_do_not_end_before_they_begin() -> None:
    scores = np.zeros((3 + 40 + 1, 2))
    scores[3 + 0, 0] = scores[3 + LONGEST_ANSWER, 1] = 10  # together one token too long
    scores[3 + 5, 0], scores[3 + 4, 1] = 8, 8  # the wrong way round
    [found] = candidates([question(LETTERS, None)], [window(40)], [scores])
    assert found.text == LETTERS[: 2 * 4 + 1]  # from the best begin to the best end that it may have
    assert all(s.text.count(" ") < LONGEST_ANSWER for s in found.spans)


def test_of_tokens_with_equal_scores_the_first_count() -> None:
    """On every machine, as in Python's sort: logits in bfloat16 are often equal."""
    scores = np.zeros((3 + 52 + 1, 2))
    scores[3:-1:2] = 1
    [found] = candidates([question(LETTERS, None)], [window(52)], [scores])
    assert [span.text for span in found.spans][:15] == [LETTERS[: 4 * i + 1] for i in range(15)]


def test_only_the_best_begins_and_the_best_ends_make_answers() -> None:
    """The best begin by far has no end: twenty tokens before it end better than any after it."""
    scores = np.zeros((3 + 40 + 1, 2))
    scores[3 + 30, 0] = 100
    scores[3 : 3 + 20, 1], scores[3 + 31, 1] = 5, 1
    [found] = candidates([question(LETTERS, None)], [window(40)], [scores])
    assert 0 < len(found.spans) <= 20
    assert all(span.begin < 100 for span in found.spans)


def test_a_text_counts_once() -> None:
    scores = np.zeros((3 + 2 + 1, 2))
    scores[3:5] = [[2, 2], [1, 1]]
    same = Window((), (), 0, 3, np.array([(0, 1), (2, 3)]), np.ones(2, bool))
    [found] = candidates([question("x x", None)], [same], [scores])
    assert [(s.text, s.score) for s in found.spans] == [("x", 4.0), ("x x", 3.0)]


def test_answers_are_cut_from_the_text_as_it_was_written() -> None:
    tokenizer = build_tokenizer([*SPECIAL_TOKENS, "a", "o", "x", ","], lowercase=True)  # strips accents
    context = "x,  Ä Ö, x"
    example = question(context, "Ä Ö")
    [shown] = windows([example], Encoder(tokenizer, 80))
    scores = np.zeros((shown.size, 2))
    scores[list(shown.targets), [0, 1]] = 9
    [found] = candidates([example], [shown], [scores])
    assert found.text == "Ä Ö"


@pytest.mark.parametrize("text", ["", " ", "\u200b", "\ufffd"], ids=["none", "blank", "zero width", "lost"])
def test_a_text_without_tokens(text: str) -> None:
    [shown] = windows([question(text, None)], Encoder(TOKENIZER, 80))
    [found] = candidates([question(text, None)], [shown], [np.ones((shown.size, 2))])
    assert (found.text, found.spans, found.odds) == ("", [], 2.0)
    assert n_best(found, may_be_nothing=False) == [
        {"text": "", "probability": 1.0, "start_logit": 1.0, "end_logit": 1.0}
    ]


def test_n_best() -> None:
    found = Candidates([Span("a", 1.0, 1.0), Span("b", 0.75, 0.25)], Span("", 0.0, 0.0))
    both = n_best(found, may_be_nothing=False)
    assert [entry["text"] for entry in both] == ["a", "b"]
    assert both[0]["probability"] == pytest.approx(np.e / (np.e + 1))
    assert (both[1]["start_logit"], both[1]["end_logit"]) == (0.75, 0.25)
    assert [entry["text"] for entry in n_best(found, may_be_nothing=True)] == ["a", "b", ""]
    assert sum(entry["probability"] for entry in n_best(found, may_be_nothing=True)) == pytest.approx(1.0)


def test_the_threshold_lies_below_all_odds_where_no_answer_is_best() -> None:
    """Negative ones too."""
    found = {name: Candidates([Span("a", 5.0, 0.0)], Span("", odds, 0.0)) for odds, name in enumerate("wxyz")}
    threshold = tune_threshold(found, {key: [] for key in "wxyz"})
    assert all(candidates.odds > threshold for candidates in found.values())


def test_the_threshold_that_is_best_for_f1() -> None:
    """No answer scores 1 and 3 more than the best one for two answerable questions, 2 and 4 for two others."""
    found = {name: Candidates([Span("a", 0.0, 0.0)], Span("", odds, 0.0)) for odds, name in enumerate("wxyz", 1)}
    references = {"w": ["a"], "x": [], "y": ["b"], "z": []}
    assert tune_threshold(found, references) == 1
    assert tune_threshold(found, {key: [] for key in "wxyz"}) < 1  # best is to answer nothing, whatever the odds
    references = {"w": ["a"], "x": ["a"], "y": ["a"], "z": []}
    assert tune_threshold(found, references) == 3


@pytest.mark.parametrize("lowercase", [False, True], ids=["cased", "uncased"])
@pytest.mark.parametrize(
    "answer",
    ["cafe\u0301", "I \u2764\ufe0f", "\u0643\u062a\u0628\u064c", "an\u200b", "cafe\u0301 an"],
    ids=["accent", "emoji", "tanwin", "zero width", "within"],
)
def test_an_answer_keeps_its_last_mark(answer: str, lowercase: bool) -> None:
    """Though an uncased tokenizer strips it, and either of them what only formats."""
    letters = "cafein\u2764\u0643\u062a\u0628\u064c\u0301\ufe0fI"
    tokens = [*SPECIAL_TOKENS, "where", "w1", *letters, *(f"##{letter}" for letter in letters)]
    encoder = Encoder(build_tokenizer(tokens, lowercase=lowercase), 100)
    asked = question(f"w1 {answer} w1 {answer}", answer)
    [window] = windows([asked], encoder)
    scores = np.zeros((len(window.sequences[0].ids), 2), np.float32)
    scores[list(window.targets), [0, 1]] = 20
    assert candidates([asked], [window], [scores])[0].text == answer


@pytest.mark.parametrize("seed", range(20))
def test_equal_odds_lie_on_one_side_of_the_threshold(seed: int) -> None:
    """As those of logits in bfloat16 are: none of all thresholds has a better F1."""
    random = np.random.default_rng(seed)
    odds = random.integers(-3, 4, size=30) / 4
    found = {str(i): Candidates([Span("a b", 0.0, 0.0)], Span("", float(value), 0.0)) for i, value in enumerate(odds)}
    references = {key: [[], ["a b"], ["b c"], ["z"]][random.integers(4)] for key in found}
    answers = dict.fromkeys(found, "a b")
    known = {key: candidates.odds for key, candidates in found.items()}
    thresholds = [-2.0, *known.values()]
    best = max(squad_v2(answers, references, known, threshold)["f1"] for threshold in thresholds)
    tuned = tune_threshold(found, references)
    assert squad_v2(answers, references, known, tuned)["f1"] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("questions", range(2, 13))
def test_wrong_answers_are_worth_less_than_none(questions: int) -> None:
    """Whatever the share of the unanswerable, which floats may round one way or the other."""
    for unanswerable in range(questions):
        found = {str(i): Candidates([Span("wrong", 1.0, 0.0)], Span("", 0.0, 0.0)) for i in range(questions)}
        references = {str(i): [] if i < unanswerable else ["right"] for i in range(questions)}
        assert tune_threshold(found, references) < -1, unanswerable  # the odds of all
