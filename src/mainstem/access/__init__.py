"""Who may: principals, tokens, rules, quotas, audit. Decides and counts; reads and writes only through a store."""
