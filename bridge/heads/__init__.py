"""Heads: what turns the raw outputs of a detector into boxes, scores and a suppression."""
