"""From raw corpora to Arrow shards. What other packages may import of it stands in pyproject.toml's contracts."""
