"""Spark: a stream as a table, a table as a stream, and a session that finds its own Java.

    spark = mainstem.spark.session()
    spark.read.format("mainstem").option("hub", "./data").option("stream", "orders").load()

Nothing here is loaded by `import mainstem`; pyspark comes with `pip install 'mainstem[spark]'`.
"""

from mainstem.spark.session import session

__all__ = ["session"]
