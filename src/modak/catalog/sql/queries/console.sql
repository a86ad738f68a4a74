-- name: make_console_login
select modak.make_console_login(%(verifier)s) as login;
