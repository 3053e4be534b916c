"""The tables and figures of the paper as jobs."""
