"""The oracle: random transactions against a tiered table and a plain twin at once, while jobs run, die and are resumed."""
