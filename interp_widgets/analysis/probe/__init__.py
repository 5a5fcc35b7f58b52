"""What a probe returns."""

from interp_widgets.analysis.probe.values import Curves, HeadMap, LayerByPosition, Table, TokenValues, Values
