"""Jobs on Spark: streams into tables, snapshots of keyed streams, history run through once more."""
