-- Which peers are silent: the last reply to this node's stream is the same, or none, for longer than modak.peer_alive_window_ms (or a share of it). A reply
-- carries the peer's clock, so this node notes by its own when it saw it change. As the catalog's owner, who may see the replies.
-- Called below the node's lock.
create or replace function modak.look_at_peers(share double precision default 1) returns table (node_name text, is_silent boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Statistics are kept for the whole transaction once read; a reply may have come since.
    perform pg_stat_clear_snapshot();
    update modak.nodes n set reply_time = found.reply_time, noticed_at = clock_timestamp()
      from (select p.node_name, r.reply_time, r.pid is not null and r.state is null as is_hidden
              from modak.nodes me
              join modak.nodes p on not p.is_self
              left join pg_replication_slots s on s.slot_name = modak.mesh_slot(me.node_name, p.node_name)
              left join pg_stat_replication r on r.pid = s.active_pid
             where me.is_self) found
     where n.node_name = found.node_name
       -- Replies that this role may not see are taken for fresh: a guess in this direction only waits.
       -- A clock that was set back would keep a dead peer alive until it has caught up.
       and (n.noticed_at is null or n.noticed_at > clock_timestamp() or found.is_hidden or n.reply_time is distinct from found.reply_time);
    return query select n.node_name, clock_timestamp() - n.noticed_at > share * modak.peer_alive_window() from modak.nodes n where not n.is_self;
end
$$;
