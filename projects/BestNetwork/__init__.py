"""How well a run goes: its main score, the best network so far, the scores before the first step."""
