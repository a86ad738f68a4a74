-- Nobody is asked for estimates of cold rows before a gateway has said that it is there: plans that never touch them would fail (decision 0020).
do $$
begin
    if not exists (select from modak.gateway) then
        alter server modak_gateway options (set use_remote_estimate 'false');
    end if;
end
$$;
