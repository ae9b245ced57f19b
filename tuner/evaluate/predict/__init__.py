"""The predicted cost of a config, without a device: from declared work and from machine code."""
