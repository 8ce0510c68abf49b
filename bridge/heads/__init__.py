"""Heads: what turns the raw outputs of a detector into boxes, scores and a suppression.

A head is a file (docs/heads.md), read by `read` into the words of `describe`; `bind` finds its
outputs in a model, `columns` and `evaluate` turn them into decoded candidates as `build` says, and
`suppress` ends the model. `guess` says which built-in head fits.
"""

from bridge.heads.attach import HeadOptions, complete
from bridge.heads.guess import Guess, guess
from bridge.heads.read import builtin_names

__all__ = ["Guess", "HeadOptions", "builtin_names", "complete", "guess"]
