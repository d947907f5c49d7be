"""What each item of a flush does to the rows of the ledger, one noun per module.

A rule is a function of the rows as they stand and of one item. It chooses nothing: times and UUIDs are in the item, ids
and offsets follow from the rows. What it refuses, it raises.
"""
