"""Charts of what a model prefers about groups of people, of probes of it, and of the neurons that write it."""

from .dots import Dot as Dot
from .dots import IntervalDots as IntervalDots
from .dots import Series as Series
from .dots import score_dots as score_dots
from .geometry import BiasGeometry as BiasGeometry
from .layers import ByLayer as ByLayer
from .layers import activity_lines as activity_lines
from .layers import probe_lines as probe_lines
from .neurons import NeuronDots as NeuronDots
from .trade_off import TradeOff as TradeOff
from .trade_off import is_random as is_random
from .trade_off import short_name as short_name
