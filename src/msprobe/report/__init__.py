"""Reports for people: one file per output format. Nothing here knows how a dump was collected."""
