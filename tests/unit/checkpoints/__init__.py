"""Tests of the download of a checkpoint."""
