from trainer.non_finite import Suspect, bad_gradient, bad_loss


def test_samples_are_named_where_they_may_be_the_reason():
    suspects = [Suspect(1, 0, [12, 13]), Suspect(0, 1, [10, 11, 14])]
    told = str(bad_loss(7, float("nan"), suspects, micro_batches=4))
    assert told == "step 7: the loss is nan, first on rank 1; data.skip=[[10,12],[14,15]] passes over their samples"
    assert "data.skip" in str(bad_loss(7, float("nan"), suspects[:1], micro_batches=1))  # who knows


def test_where_every_micro_batch_is_bad_it_is_not_the_data():
    suspects = [Suspect(turn, rank, [turn]) for turn in (0, 1) for rank in (0, 1)]
    told = str(bad_loss(7, float("inf"), suspects, micro_batches=4))
    assert told.startswith(
        "step 7: the loss is inf in every micro-batch: it is not the data, the training has diverged"
    )
    assert "data.skip" not in told


def test_all_ranks_whose_loss_was_the_first_to_be_bad_are_named():
    """Which of them had the bad sample nobody knows, for they computed at one time."""
    suspects = [Suspect(1, 0, [6, 7]), Suspect(0, 0, [0, 5]), Suspect(0, 2, [1, 4])]
    told = str(bad_loss(7, float("nan"), suspects, micro_batches=6))
    assert "first on rank 0 and rank 2; data.skip=[[0,2],[4,6]] passes over their samples" in told


def test_a_sum_that_is_infinite_though_its_parts_are_not_blames_no_sample():
    told = str(bad_loss(7, float("inf"), [], micro_batches=4))
    assert told == "step 7: the loss is inf, though each sample's is finite"


def test_a_bad_gradient_is_told_with_the_samples_of_all_ranks_and_the_scale_where_there_is_one():
    samples = [2, 3, 6, 7, 0, 1, 4, 5]
    told = "step 7: a gradient is NaN or infinite, though all losses are finite; the samples of the step are [0, 8]"
    assert str(bad_gradient(7, samples)) == told
    assert str(bad_gradient(7, samples, 0.5)) == told.replace(" is", " even at the lowest loss scale, 0.5, is", 1)
