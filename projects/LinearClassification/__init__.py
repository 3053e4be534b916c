"""Linear classification: what a plane, a vote or a margin can tell apart in frozen features."""
