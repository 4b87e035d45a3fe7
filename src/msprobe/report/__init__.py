"""What people read: one file an output. Nothing here knows how a dump was collected."""
