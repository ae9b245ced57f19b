"""Replays whole CTAs from machine code: warps in their roles, barriers, copies, products, and what they share."""
