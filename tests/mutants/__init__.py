"""Sabotaged versions of the product: what the verifier has to notice, and how soon it does.

A verifier that finds nothing may be blind. So here are small changes that each break one rule of
the protocol: one for each step, each row of recovery, each sink's transaction, each rule of
fencing, numbering and waiting. `scripts/mutants` applies them to a copy and runs the cell that each
belongs to, of the quick preset or of those that the full one begins with; `tests/verify/
test_mutants.py` keeps them applicable.
"""
