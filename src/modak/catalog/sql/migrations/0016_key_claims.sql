-- What two transactions that upsert one key meet on, where no unique index of the heap stands between them.
create unlogged table modak.key_claims (
    key_hash bigint primary key
);
comment on table modak.key_claims is 'Keys that transactions are upserting: a row is deleted by the transaction that made it, and a second one waits for the first.';
