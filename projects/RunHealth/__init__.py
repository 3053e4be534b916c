"""Whether a run is well: its speed, its cost, an alarm for collapse, its best network, its start."""
