"""DeepSpeed pretraining of BERT on shards."""
