-- Values as the lake holds them, in the heap's own types: what the view would show.
insert into {staging} ({columns}) select {values} from pg_temp.modak_raw r;
