from trainer.non_finite import Suspect, bad_loss


def test_samples_are_named_where_they_may_be_the_reason():
    suspects = [Suspect(1, 0, [16, 17]), Suspect(0, 1, [10, 11])]
    told = str(bad_loss(7, float("nan"), suspects, micro_batches=4))
    assert told == "step 7: the loss is nan, first on rank 1 (samples [10, 12]); data.skip=[[10, 12]] passes over them"
    assert "data.skip" in str(bad_loss(7, float("nan"), suspects[:1], micro_batches=1))  # who knows


def test_where_every_micro_batch_is_bad_it_is_not_the_data():
    suspects = [Suspect(turn, rank, [turn]) for turn in (0, 1) for rank in (0, 1)]
    told = str(bad_loss(7, float("inf"), suspects, micro_batches=4))
    assert told.startswith(
        "step 7: the loss is inf in every micro-batch: it is not the data, the training has diverged"
    )
    assert "data.skip" not in told
