"""Semantics of the PTX instructions, one family per module."""
