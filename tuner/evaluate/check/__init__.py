"""Whether a config is right: its edges run, and what they leave is held against a float64 reference."""
