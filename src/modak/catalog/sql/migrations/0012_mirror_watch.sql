-- What a mirrored table relies on besides the stream itself, as it was when the copy looked: another one now, and changes may be missing.

alter table modak.mirrors add column published text;
comment on column modak.mirrors.published is 'Which entry of the publication has told of the table''s changes since the copy. NULL: not known yet.';

alter table modak.copy_progress add column leaves jsonb not null default '[]', add column published text;
alter table modak.copy_progress add constraint leaves_is_array check (jsonb_typeof(leaves) = 'array');
comment on column modak.copy_progress.leaves is 'The files that the rows stood in when the copy began. Rows that others bring are not in the stream, and the copy starts over.';
comment on column modak.copy_progress.published is 'Which entry of the publication told of the table''s changes then.';
