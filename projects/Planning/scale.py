#!/usr/bin/env python
"""The name that studies/benchmarks/scale.py had; it goes in version 0.3."""

from revisit.compat.moved import run_moved

if __name__ == "__main__":
    run_moved(__file__)
