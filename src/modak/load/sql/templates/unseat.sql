-- Take the cold rows of these keys out of sight, through the view: a tombstone, wherever the row stands, checked against whoever changes it
-- meanwhile. The arrays are for the lake, which cannot join.
with needy as materialized (select {needy_keys} from {stage} s where {needs})
delete from {view} v using needy n where {same_key} and v.{tier_key} < {line} and {listed};
