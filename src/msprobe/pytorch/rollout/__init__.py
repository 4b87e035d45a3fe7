"""Rollout against trainer: what runs inside an inference engine and inside a trainer that is compared with it."""
