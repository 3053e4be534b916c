"""Importing it registers the core's evaluations."""

from revisit.evaluation import box_evaluators as box_evaluators
from revisit.evaluation import classifiers as classifiers
from revisit.evaluation import linear_classifier as linear_classifier
from revisit.evaluation import pixel_evaluators as pixel_evaluators
