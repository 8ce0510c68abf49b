"""Small models of our own making, and what made them."""
