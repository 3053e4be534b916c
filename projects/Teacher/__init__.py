"""Unlabelled photographs while a detector is finetuned: the student's average labels them for the student."""
