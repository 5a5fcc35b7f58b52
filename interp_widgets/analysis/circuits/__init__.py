"""How well analyses find the circuits of `load_circuit`, whose parts are known."""

from interp_widgets.analysis.circuits.grading import CircuitGrade, grade_circuit
from interp_widgets.analysis.circuits.methods import METHODS, Ranking
from interp_widgets.analysis.circuits.ranking import CircuitRanking, circuit_ranking
from interp_widgets.analysis.circuits.scoreboard import CircuitScoreboard, circuit_scoreboard
