"""Compilation of configs: source, machine code, and its analysis."""
