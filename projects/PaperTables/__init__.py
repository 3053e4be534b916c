"""The tables and figures of the paper as jobs."""

import projects.ToyScenes  # noqa: F401  (knows the names of its data sets)
