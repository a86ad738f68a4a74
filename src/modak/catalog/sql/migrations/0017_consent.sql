-- A claim is sent again to learn more, and consent that was given to an earlier sending stays consent, until the node has to ask anew.
alter table modak.claims add column counts_from integer not null default 0;
comment on column modak.claims.counts_from is 'Consent to this sending and to later ones counts; to earlier ones not, since this node was out of touch after them.';
