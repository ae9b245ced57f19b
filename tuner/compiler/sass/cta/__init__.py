"""Replay of whole CTAs from machine code: warp roles, barriers, copies, products, and shared resources."""
