"""Kernels from where people have them: calls and files of other tuners, as folders of operators."""
