"""What images and labels look like, before a run learns from them or scores against them."""
