-- As insert_or_update, for a key that no unique index of the heap has: a row is found by its key wherever it stands, and moves.
-- What stands below the retention line is nobody's row any more.
with changed as (
    update {heap} h set {assignments} from {stage} s where {chosen} and {heap_has_key} and {above_floor}
    returning s._modak_line
)
insert into {heap} ({columns}) {overriding}
select {values} from {stage} s where {chosen} and not exists (select from changed c where c._modak_line = s._modak_line) {order};
