"""Where Spark finds `sparkonce_table` by itself, in every session and without a word by the user.

It looks through modules whose names begin with `pyspark_` for a class of this name, when it meets
a format that none of its own sources has.
"""

from sparkonce.ingest.source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
