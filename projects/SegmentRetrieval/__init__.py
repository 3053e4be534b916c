"""Segment retrieval on Pascal VOC: regions of an image, named by their nearest labelled region."""
