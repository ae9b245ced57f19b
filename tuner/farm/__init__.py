"""Searches on many machines: each problem is a task of Dask, which only `tuner search --farm` imports."""
