"""The planted faults by kind. Importing this package fills `cases.FAULTS`."""

from faults import forward as forward
