CREATE TABLE{{.IfNotExists}} {{.Names.Schema}} (
	version    int4 PRIMARY KEY,
	oldest     int4 NOT NULL,                  -- the oldest schema version that code may know and still use this one
	applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE{{.IfNotExists}} {{.Names.Records}} (
	id             uuid PRIMARY KEY,           -- half of the SHA-256 of tenant, operation and key
	-- What is always there and always as long comes first: the server finds it without a look at the rest, and nothing is padded.
	owner          uuid NOT NULL,              -- token of the attempt
	fence          int8 NOT NULL,
	reserved_at    timestamptz NOT NULL,
	sweep_after    timestamptz NOT NULL,       -- when a sweeper looks at the row; coarse
	holder_pid     int8 NOT NULL,
	rev            int4 NOT NULL,              -- grows with every write
	attempt        int4 NOT NULL,
	format         int2 NOT NULL,              -- version of this row's meaning
	state          int2 NOT NULL,              -- 1 in flight, 2 completed, 3 failed, 4 uncertain, 5 open
	on_abandoned   int2 NOT NULL,              -- 1 rerun, 2 recover, 3 hold
	took_over      boolean NOT NULL,
	tenant         text NOT NULL,
	operation      text NOT NULL,
	key            text NOT NULL,
	holder_host    text NOT NULL,
	evidence       text NOT NULL,
	fingerprint    bytea,
	holder_started timestamptz,
	lease_until    timestamptz,
	completed_at   timestamptz,
	replay_until   timestamptz,
	known_until    timestamptz,                -- NULL: no end until settled
	body           bytea
){{if .PostgreSQL}} WITH (
	fillfactor = 33,                           -- room for the completions in the rows' own page, also when one statement completes all of them
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_insert_scale_factor = 0.1
){{else}} WITH (
	-- A backstop, for when no sweeper runs. Readers do not rely on it, and what is not settled has no end.
	ttl_expiration_expression = 'CASE WHEN state IN (2, 3) THEN known_until END',
	ttl_job_cron = '@daily'
){{end}};

CREATE INDEX{{.IfNotExists}} {{.Names.Sweep}} ON {{.Names.Records}} (sweep_after){{if .CockroachDB}} USING HASH{{end}};
{{if .PostgreSQL}}
CREATE SEQUENCE {{.Names.Fence}};
{{end}}
CREATE {{if .CockroachDB}}OR REPLACE {{end}}VIEW {{.Names.Overview}} AS
SELECT tenant, operation, key,
       CASE state WHEN 1 THEN 'in flight' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed' WHEN 4 THEN 'uncertain' WHEN 5 THEN 'open' END AS state,
       attempt, fence, holder_host, holder_pid, reserved_at, lease_until, completed_at, replay_until, known_until,
       length(body) AS result_bytes, evidence
  FROM {{.Names.Records}};

INSERT INTO {{.Names.Schema}} (version, oldest) VALUES (1, 1){{.Once}};
