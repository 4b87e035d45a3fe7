"""Rollout against trainer: reads dumps with tokens, samples and checkpoints, and says where the two sides part.

Readers only: what runs inside an engine or a trainer is in `msprobe.pytorch.rollout`.
"""
