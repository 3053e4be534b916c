"""Importing it registers the core's evaluations."""

from revisit.evaluation import box_evaluators as box_evaluators
from revisit.evaluation import classifiers as classifiers
from revisit.evaluation import pixel_evaluators as pixel_evaluators
