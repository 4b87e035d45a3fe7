"""`Monitor`, `TrainerMon` and `MsprobeCallback` for PyTorch: what the framework forces; the rest is `msprobe.watch`."""
