"""Searches on many machines: whole problems as tasks of Dask, which stays outside until a search asks for it."""
