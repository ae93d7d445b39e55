"""From raw corpora to Arrow shards. Only ``schema`` and ``tokenization`` are doors for other packages."""
