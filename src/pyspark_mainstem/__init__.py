"""Lets Spark find the source `mainstem` without registration: it looks into every package named pyspark_*."""
