"""State tables: rows keyed `table_id | vnode | key` in immutable sorted runs, and one manifest an epoch that says which runs count."""
