"""`Monitor`, `TrainerMon` and `MsprobeCallback` for MindSpore: what the framework forces; `msprobe.watch` has the rest."""
