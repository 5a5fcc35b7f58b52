"""Models trained from scratch on the synthetic instruction-following task, with the checkpoints of their training."""

from .instruction_model import train_instruction_model
from .runs import InstructionRun, read_instruction_run

__all__ = ["InstructionRun", "read_instruction_run", "train_instruction_model"]
