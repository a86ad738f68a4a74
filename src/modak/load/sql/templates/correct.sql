-- Corrections, newest wins, as modak.put_delta makes them; all at once. Nobody has looked where the lake has the row, if anywhere.
insert into {delta} as d (table_id, pk, op, tier_key, payload)
select {table_id}, {pk}, 0, {canonical}, {image} from {stage} s where s._modak_set = -2 {order}
on conflict (table_id, pk) do update
   set op = excluded.op,
       tier_key = excluded.tier_key,
       old_tier_key = nullif(coalesce(d.old_tier_key, d.tier_key), excluded.tier_key),
       payload = excluded.payload,
       version = nextval('modak.delta_version');
