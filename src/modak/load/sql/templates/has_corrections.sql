select exists (select from {delta} d where d.table_id = {table_id}) as found;
