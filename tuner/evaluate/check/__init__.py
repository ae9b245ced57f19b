"""Correctness checks: a config runs its edge cases, and the outputs are compared with a float64 reference."""
