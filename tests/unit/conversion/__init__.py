"""Tests of the conversions of the language model's checkpoint."""
