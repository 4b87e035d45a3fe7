"""The planted faults by kind. Importing this package fills `cases.FAULTS`."""

from faults import backward as backward
from faults import data as data
from faults import distribution as distribution
from faults import forward as forward
from faults import networks as networks
from faults import optimizer as optimizer
from faults import precision as precision
from faults import weights as weights
from faults import wiring as wiring
