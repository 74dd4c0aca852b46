"""Mutants of the database sinks: each one's transaction, its fence, and a COMMIT without answer."""

from __future__ import annotations

from mutants.mutant import Cell, Change, Mutant

_SINK, _ROW = "deliver/sink.py", "deliver/row.py"
_POSTGRES = "deliver/postgres/transaction.py"
_DUCKDB = "deliver/duckdb/transaction.py"
_DELTA = "deliver/delta/transaction.py"

_UNCHECKED = Change(
    _ROW, '    return f"(number IS NULL OR number < {than})"\n', '    return "1 = 1"\n'
)
"""That no entry is noted twice is checked in the statement that notes it, too."""
_EPOCH = "if found is None or found[0] != epoch:"

DELIVERING = (
    Mutant(
        name="PostgreSQL, rows before their ledger entry",
        sabotages="Rows are committed in one transaction, the ledger's entry in the next",
        cells=(Cell("into PostgreSQL", "exactly_once", "crash"),),
        changes=(
            Change(
                _POSTGRES,
                "        values = row.to_row(entry, sources)\n",
                '        self._connection.execute("COMMIT")\n'
                '        self._connection.execute("BEGIN")\n'
                "        values = row.to_row(entry, sources)\n",
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL, epochs are not compared",
        sabotages="A driver that another has taken over from still writes",
        cells=(Cell("into PostgreSQL", "exactly_once", "zombie"),),
        changes=(Change(_POSTGRES, _EPOCH, "if found is None:"), _UNCHECKED),
    ),
    Mutant(
        name="PostgreSQL, unknown is committed",
        sabotages="A COMMIT without an answer is taken for done",
        cells=(Cell("into PostgreSQL", "exactly_once", "database"),),
        changes=(
            Change(
                _SINK,
                "            self._settle(self._noted[0], unknown)\n",
                "            _log.info('%s', unknown)\n",
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL, unknown is rolled back",
        sabotages="A COMMIT without an answer is taken for not done: the batch is written again",
        cells=(Cell("into PostgreSQL", "exactly_once", "database"),),
        changes=(
            Change(
                _SINK,
                "            self._settle(self._noted[0], unknown)\n",
                "            self._transaction = None\n"
                "            raise StoreError(str(unknown)) from unknown\n",
            ),
            _UNCHECKED,
        ),
    ),
    Mutant(
        name="PostgreSQL, staged rows are not counted",
        sabotages="Rows that a crash of the server took from the stage are not missed",
        cells=(Cell("into PostgreSQL", "exactly_once", "database"),),
        changes=(
            Change(
                _POSTGRES,
                "if self._connection.execute(move.write()).rowcount != expected:",
                "if self._connection.execute(move.write()).rowcount > expected:",
            ),
            Change(_POSTGRES, "        if found != expected:\n", "        if found > expected:\n"),
        ),
    ),
    Mutant(
        name="PostgreSQL, a commit that is not on disk",
        sabotages="A COMMIT is answered before it is on the server's disk",
        cells=(Cell("into PostgreSQL", "exactly_once", "database"),),
        changes=(
            Change(
                "deliver/postgres/connection.py",
                "    True: \"CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \"\n"
                "    \"ELSE current_setting('synchronous_commit') END\",\n",
                "    True: \"'off'\",\n",
            ),
        ),
    ),
    Mutant(
        name="DuckDB, rows before their ledger entry",
        sabotages="Rows are committed in one transaction, the ledger's entry in the next",
        cells=(Cell("into DuckDB", "exactly_once", "crash"),),
        changes=(
            Change(
                _DUCKDB,
                "        values = row.to_row(entry, sources)\n",
                '        self._connection.execute("COMMIT")\n'
                '        self._connection.execute("BEGIN")\n'
                "        values = row.to_row(entry, sources)\n",
            ),
        ),
    ),
    Mutant(
        name="DuckDB, epochs are not compared",
        sabotages="A driver that another has taken over from still writes",
        cells=(Cell("into DuckDB", "exactly_once", "zombie"),),
        changes=(Change(_DUCKDB, _EPOCH, "if found is None:"), _UNCHECKED),
    ),
    Mutant(
        name="Delta, rows before their ledger entry",
        sabotages="Rows are in one commit of the table's log, the ledger's entry in the next",
        cells=(Cell("into Delta", "exactly_once", "crash"),),
        changes=(
            Change(
                _DELTA,
                "        self._noted = (entry, sources)\n",
                "        self.commit()\n"
                "        self._is_over, self._change = False, NoRows()\n"
                "        self._name = uuid.uuid4().hex\n"
                "        self._noted = (entry, sources)\n",
            ),
        ),
    ),
    Mutant(
        name="Delta, epochs are not compared",
        sabotages="A driver that another has taken over from still writes",
        cells=(Cell("into Delta", "exactly_once", "zombie"),),
        changes=(
            Change(
                _DELTA,
                "        if last is None or last.epoch != self._epoch:\n",
                "        if last is None:\n",
            ),
            Change(
                _DELTA,
                "if self._noted and last.entry and last.entry.number >= self._noted[0].number:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        name="Delta, only the last commit is looked for",
        sabotages="Files of a commit that happened are deleted where it is not the last any more, "
        "since another driver has taken over",
        cells=(Cell("into Delta", "exactly_once", "zombie"),),
        changes=(
            Change(
                "deliver/delta/log.py",
                "            there = self._at(seen, note.version)\n",
                "            there = last\n",
            ),
        ),
    ),
    Mutant(
        name="rows with a null key are one row",
        sabotages="Of the rows of a batch with a null key one is written, and the others are not",
        cells=(Cell("bad rows into PostgreSQL", "exactly_once", "crash"),),
        changes=(
            Change(
                "deliver/sql.py",
                'others = "" if self.nulls_equal else f" OR {self.has_null}"',
                'others = ""',
            ),
        ),
    ),
    Mutant(
        name="DuckDB, rows with a null key are one row",
        sabotages="Rows with a null key are upserted like others: DuckDB takes them for one row",
        cells=(Cell("bad rows into DuckDB", "exactly_once", "crash"),),
        changes=(
            Change(
                "deliver/duckdb/statements.py",
                "    if not move.upserts:\n",
                "    if True:\n",
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL, text in the encoding of the database",
        sabotages="Connections have no encoding of their own, so a server that is not in UTF-8 "
        "takes the bytes of our text for its own",
        cells=(Cell("bad rows into PostgreSQL", "exactly_once", "crash"),),
        changes=(
            Change(
                "deliver/postgres/connection.py",
                'user, password), "client_encoding": "UTF8"}',
                "user, password)}",
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL source, text in the encoding of the database",
        sabotages="The source's connections have no encoding of their own: from a server that is "
        "not in UTF-8 come bytes that are no UTF-8",
        cells=(Cell("from LATIN1", "exactly_once", "crash"),),
        changes=(
            Change(
                "ingest/postgres/connection.py",
                '    "client_encoding": "UTF8",\n',
                '    "connect_timeout": "60",\n',
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL source, attached rows are as old as they are",
        sabotages="Rows of a partition that is attached later are passed over where they were "
        "written before the last batch",
        cells=(Cell("from partitions", "exactly_once", "crash"),),
        changes=(
            Change(
                "ingest/postgres/children.py",
                "    return Children(root, tuple(found))\n",
                "    return Children(root, ())\n",
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL, a stage for each batch",
        sabotages="A staging table is made for each batch and dropped behind it",
        cells=(Cell("into PostgreSQL", "exactly_once", "dump"),),
        changes=(
            Change(
                "deliver/postgres/stages.py",
                "        if taken is None or taken.is_empty:\n"
                "            return None\n"
                "        return _delete(self._layout, taken.name, taken.attempt)\n",
                "        if taken is None:\n"
                "            return None\n"
                '        return f"DROP TABLE {self._layout.staged(taken.name)}"\n',
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL, staged rows are told by the server's numbers",
        sabotages="What a task has staged is told by the number of its transaction, which a server "
        "that crashed gives out again",
        cells=(Cell("into PostgreSQL", "exactly_once", "retry"),),
        changes=(
            Change(
                "deliver/postgres/stage.py",
                "answered(lambda: self._copy(reader), silence)",
                "answered(lambda: self._copy(reader, connection), silence)",
            ),
            Change(
                "deliver/postgres/stage.py",
                "    def _copy(self, reader: pa.RecordBatchReader) -> None:\n"
                "        connection = self._begin()\n",
                "    def _copy(self, reader: pa.RecordBatchReader, connection: Any) -> None:\n",
            ),
            Change(
                "deliver/postgres/stage.py",
                "        number = (self.attempt << _TASK_BITS) | (task % (1 << _TASK_BITS))\n",
                "        connection = self._begin()\n"
                "        with connection.cursor() as cursor:\n"
                '            cursor.execute("SELECT txid_current()")\n'
                "            number = int(cursor.fetchone()[0])\n",
            ),
        ),
    ),
    Mutant(
        name="PostgreSQL, rows in any order",
        sabotages="An upsert takes keys in the order in which rows were staged",
        cells=(Cell("two into PostgreSQL", "exactly_once", "crash"),),
        changes=(
            Change(
                "deliver/postgres/statements.py",
                "names = sorted(self.columns.keys, key=self.theirs) if self.upserts else []",
                "names: list[str] = []",
            ),
        ),
    ),
    Mutant(
        name="the oldest row of a key is written",
        sabotages="Of several rows of a key in a batch the oldest is written, not the newest",
        cells=(
            Cell("bad rows into PostgreSQL", "exactly_once", "crash"),
            Cell("bad rows into DuckDB", "exactly_once", "crash"),
        ),
        changes=(Change("deliver/sql.py", "DESC NULLS LAST", "ASC NULLS LAST"),),
    ),
    Mutant(
        name="PostgreSQL, refused rows go nowhere",
        sabotages="Rows that the table refuses are not written to the dead letters",
        cells=(Cell("bad rows into PostgreSQL", "exactly_once", "crash"),),
        changes=(
            Change(
                _POSTGRES,
                "aside = self._connection.execute(marked).rowcount if marked else 0\n",
                "aside = 0\n",
            ),
        ),
    ),
    Mutant(
        name="DuckDB, refused rows go nowhere",
        sabotages="Rows that the table refuses are not written to the dead letters",
        cells=(Cell("bad rows into DuckDB", "exactly_once", "crash"),),
        changes=(
            Change(
                _DUCKDB,
                "aside = sum(self._count(statement) for statement in statements if statement)\n",
                "aside = 0\n",
            ),
        ),
    ),
)
