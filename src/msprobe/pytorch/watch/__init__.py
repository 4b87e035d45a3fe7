"""`Monitor`, `TrainerMon` and `MsprobeCallback` for PyTorch: what the framework forces; `msprobe.watch` has the rest."""
