"""DAVIS-2017 by label propagation: how well frozen features tell where things went."""
