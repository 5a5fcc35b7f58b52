"""What a model prefers in published sets of sentences and questions about groups of people."""

from .bbq import BBQMetrics as BBQMetrics
from .bbq import BBQResult as BBQResult
from .bbq import bbq_metrics as bbq_metrics
from .bbq import score_bbq as score_bbq
from .crows import CrowsResult as CrowsResult
from .crows import score_crows as score_crows
from .lope import lope as lope
from .lope import lope_edit as lope_edit
from .neurons import BiasActivity as BiasActivity
from .neurons import BiasNeurons as BiasNeurons
from .neurons import bias_neuron_activity as bias_neuron_activity
from .neurons import rank_bias_neurons as rank_bias_neurons
from .probes import BiasProbes as BiasProbes
from .probes import train_bias_probes as train_bias_probes
from .stereoset import StereoSetMetrics as StereoSetMetrics
from .stereoset import StereoSetResult as StereoSetResult
from .stereoset import score_stereoset as score_stereoset
from .stereoset import sentence_score as sentence_score
from .stereoset import stereoset_metrics as stereoset_metrics
