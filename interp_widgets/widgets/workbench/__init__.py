"""The workbench: one screen of panels on the same prompt, response and selection."""

from .workbench import Workbench as Workbench
