"""What is looked at before a training is started on a node, and between nodes."""
