"""A detector of drawn shapes: its scenes, its network, its weights."""
