"""Adds the keys MONITOR and their evaluation while pretraining."""

from projects.LabelFreeMonitor import monitor as monitor
