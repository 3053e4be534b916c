"""kNN-MoCo that knows which images belong together, and neighbours that are checked by a way back."""
