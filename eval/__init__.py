"""Evaluation of exported checkpoints."""
