"""Config → source → machine code, and what that code is made of."""
