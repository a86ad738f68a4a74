-- As unseat, and what rows did not give they keep: the old row's values complete them.
with needy as materialized (
    select {needy_keys} from {stage} s where {needs}
), gone as (
    delete from {view} v using needy n where {same_key} and v.{tier_key} < {line} and {listed}
    returning {gone_columns}
)
update {stage} s set {completed}, _modak_set = {whole} from gone g where {is_gone};
