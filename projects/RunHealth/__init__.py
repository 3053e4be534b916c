"""Whether a run is well: its speed, its cost, an alarm for collapse."""
