-- Some rows of a small range as people read them.
select {key_text} as key_text, {pk} as pk, {image}::text as image
  from {source} r
 where {key} >= {low} and {key} < {high} and {key_text} = any ({keys}::text[]);
