"""`Monitor`, `TrainerMon` and `MsprobeCallback` for MindSpore: the part that imports mindspore."""
