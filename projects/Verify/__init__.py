"""Are published weights what they are said to be? Their hash, their layout and their published scores."""
