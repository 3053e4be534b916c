"""Registers TeacherDetector with its keys, what it adds to samples, its hooks, its pictures and its checks."""

from projects.Teacher import checks, pictures, samples, teacher_detector, watching  # noqa: F401
