"""Predicates: one language of conditions, WHERE of SQL, for everyone who selects records."""

from mainstem.core.predicate.predicate import BoundPredicate, Predicate

__all__ = ["BoundPredicate", "Predicate"]
