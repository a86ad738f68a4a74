"""Cold rows at one published snapshot: which files hold them (snapshots, prune), and the SQL that reads them (relation, engine)."""
