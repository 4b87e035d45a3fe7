"""`Monitor`, `TrainerMon` and `MsprobeCallback` for MindSpore: the part that needs the framework."""
