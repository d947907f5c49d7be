"""Who reads what: state machines that share streams among the members of a group. They decide; others act."""
