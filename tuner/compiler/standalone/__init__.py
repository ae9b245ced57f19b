"""C++ for other programs: a header and a .cu file that launch a config at every size."""
