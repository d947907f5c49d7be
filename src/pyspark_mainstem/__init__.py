"""Lets Spark find the source `mainstem` without registration: it looks into every package named pyspark_*."""

from mainstem.spark.source import MainstemSource as DefaultSource

__all__ = ["DefaultSource"]
