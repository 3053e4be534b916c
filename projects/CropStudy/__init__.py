"""How much two random crops of an image share, and how pretraining changes if they may share less."""
