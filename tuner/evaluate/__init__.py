"""Evaluation of a config: correctness, predicted cost, and time on a device."""
