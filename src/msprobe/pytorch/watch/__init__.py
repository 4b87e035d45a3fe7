"""`Monitor`, `TrainerMon` and `MsprobeCallback` for PyTorch: the part that imports torch."""
