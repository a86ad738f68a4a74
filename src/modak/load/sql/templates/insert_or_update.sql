-- Rows of one set of columns. What a row does not give has its default where the row is new, and is kept where it is not.
-- A row that is cold finds its copy in the heap, or lands in the spill; triggers tell the delta either way.
insert into {heap} ({columns}) {overriding}
select {values} from {stage} s where {chosen} {order}
on conflict ({unique_key}) do update set {assignments};
