"""What Makefiles call."""
