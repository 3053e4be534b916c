"""Do published weights hold what was published of them? Their hash, their layout and their published scores."""
