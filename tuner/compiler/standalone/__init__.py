"""Export to C++: a header and a .cu file that launch a config at any size."""
