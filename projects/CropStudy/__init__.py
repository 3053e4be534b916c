"""How much two random crops of an image share, and what becomes of pretraining when they may share less."""
