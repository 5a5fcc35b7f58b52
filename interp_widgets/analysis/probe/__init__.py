"""Return types of user-defined probes, and linear probes of hidden states."""

from interp_widgets.analysis.probe.training import ProbeResult, train_probe
from interp_widgets.analysis.probe.values import Curves, HeadMap, LayerByPosition, Matrix, Table, TokenValues, Values
