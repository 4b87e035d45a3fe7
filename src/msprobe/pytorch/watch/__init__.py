"""`Monitor`, `TrainerMon` and `MsprobeCallback` for PyTorch: the part that needs the framework."""
