-- name: draw_ticket
select ticket, node, is_granted from modak.claim_table(%(iceberg_table)s);

-- name: grant_claim
select state, coalesce(missing, '{}') as missing from modak.grant_claim(%(iceberg_table)s, %(ticket)s, %(look)s);

-- name: ask_again
select modak.ask_again(%(iceberg_table)s, %(ticket)s);

-- name: release_claim
select modak.release_claim(%(iceberg_table)s, %(ticket)s) as was_there;

-- name: holds_claim
select modak.holds_claim(%(iceberg_table)s, %(ticket)s) as held;

-- name: tend_node
select subscription from modak.tend_node() as subscription;

-- name: read_alive_window
select extract(epoch from modak.peer_alive_window())::float8 as seconds;

-- name: settle_session
-- A claim lives as long as its session, however long its writer takes; and each statement must see what was committed before it.
select set_config('default_transaction_isolation', 'read committed', false), set_config('idle_session_timeout', '0', false),
       set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false);
