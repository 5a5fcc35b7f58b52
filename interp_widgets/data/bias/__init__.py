"""Readers of published data sets about social bias, and the demo's own."""

from .any_layout import read_bias_data as read_bias_data
from .bbq import BBQQuestion as BBQQuestion
from .bbq import read_bbq as read_bbq
from .crows_pairs import CrowsPair as CrowsPair
from .crows_pairs import read_crows_pairs as read_crows_pairs
from .demo import demo_stereoset as demo_stereoset
from .labelled import LabeledTexts as LabeledTexts
from .labelled import demo_bias_texts as demo_bias_texts
from .labelled import labeled_texts as labeled_texts
from .pairs import SentencePair as SentencePair
from .pairs import read_sentence_pairs as read_sentence_pairs
from .relations import Relation as Relation
from .relations import read_relation as read_relation
from .stereoset import StereoSetExample as StereoSetExample
from .stereoset import read_stereoset as read_stereoset
