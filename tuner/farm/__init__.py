"""Searches on many machines: each problem is a task of Dask, which is imported only by `tuner search --farm`."""
