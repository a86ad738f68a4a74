-- Keys of files on their way into the lake, each with the age of its file: corrections of these rows that are older go with the commit.
create table {incoming} (version bigint not null, {columns});
