"""Readers of data sets in their original formats: a module for each, the same few types from all of them."""
