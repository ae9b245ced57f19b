"""Utilities without GPU knowledge for every layer: plain fields, files shared by processes, worker processes."""
