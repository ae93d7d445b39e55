"""Every sample once, micro-batches of one size, and of as many tokens as their samples allow."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.balancing import deal

STEPS = st.tuples(st.integers(1, 8), st.integers(1, 12)).flatmap(
    lambda shape: st.tuples(
        st.just(shape[0]), st.lists(st.integers(2, 512), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    )
)


@given(STEPS)
def test_every_sample_is_in_one_micro_batch_in_the_order_of_the_stream(step):
    size, lengths = step
    dealt = deal(np.array(lengths), size)
    assert dealt.shape == (len(lengths) // size, size)
    assert sorted(dealt.flatten().tolist()) == list(range(len(lengths)))
    assert (np.diff(dealt) > 0).all()


@given(STEPS)
def test_micro_batches_differ_by_less_than_samples_of_about_one_length_do(step):
    """Of those that are dealt in one round; whatever else they hold, they are no further apart."""
    size, lengths = step
    tokens = np.array(lengths)[deal(np.array(lengths), size)].sum(axis=1)
    rounds = np.sort(lengths).reshape(size, -1)
    assert np.ptp(tokens) <= np.ptp(rounds, axis=1).max()


def test_samples_of_a_corpus_make_micro_batches_that_are_nearly_equal():
    """As in the paper's steps, on eight ranks; in the order of the stream the largest is a tenth above the mean."""
    drawn = np.random.Generator(np.random.PCG64(1))
    lengths = np.where(drawn.random((50, 256)) < 0.5, 512, drawn.integers(16, 512, (50, 256)))
    in_order, dealt = (
        np.mean([tokens.max() / tokens.mean() for tokens in steps])
        for steps in (
            lengths.reshape(50, 8, 32).sum(axis=2),
            [step[deal(step, 32)].sum(axis=1) for step in lengths],
        )
    )
    assert in_order > 1.08
    assert dealt < 1.001


def test_of_equal_samples_each_micro_batch_has_its_own_by_their_order():
    assert deal(np.full(8, 7), 2).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    # So many that numpy's default sort, whose order of equal ones depends on the processor, mixes them up.
    order = [*range(2, 64, 3), *range(1, 64, 3), *range(0, 64, 3)]
    assert deal(np.arange(64) % 3, 1).flatten().tolist() == order
    pairs = zip(order[:32], order[43:] + order[32:43], strict=True)  # 21 of 2 tokens and 11 of 1, which get more
    assert deal(np.arange(64) % 3, 2).tolist() == list(map(sorted, pairs))


def test_the_longest_samples_are_with_the_shortest():
    assert deal(np.array([10, 50, 20, 40, 30, 60]), 2).tolist() == [[0, 5], [1, 2], [3, 4]]
    assert deal(np.array([3, 9, 5]), 1).tolist() == [[1], [2], [0]], "what ranks compute at one time is of one length"
