"""PostgreSQL: rows told by the transactions that wrote them, read by COPY as Arrow."""
