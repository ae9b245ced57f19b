"""Config → source → machine code, and its analysis."""
