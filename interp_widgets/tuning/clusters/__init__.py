"""Models trained from scratch on the synthetic instruction-following task, with the checkpoints of their training."""

from .runs import InstructionRun, read_instruction_run
from .training import train_instruction_model

__all__ = ["InstructionRun", "read_instruction_run", "train_instruction_model"]
