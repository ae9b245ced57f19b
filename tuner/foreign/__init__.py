"""Import of kernels from other tuners: calls and files become folders of operators."""
