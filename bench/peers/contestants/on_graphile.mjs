// Drain no-op jobs with graphile-worker, local queue of 500 and batched completion: on_graphile.mjs DSN JOBS
import { createRequire } from "node:module";

// Modules are looked up where npm has put them, not beside this file.
const require = createRequire(`${process.env.BENCH_MODULES}/`);
const { run, runMigrations } = require("graphile-worker");
const { Pool } = require("pg");

const [dsn, count] = process.argv.slice(2);
const jobs = Number(count);
const quiet = { error: console.error, warning() {}, info() {}, debug() {} };
const { Logger } = require("graphile-worker");
const logger = new Logger(() => (level, message) => quiet[level]?.(message));
const text = "x".repeat(71);

const pool = new Pool({ connectionString: dsn, max: 10 });
await runMigrations({ pgPool: pool, logger });
await pool.query(
  `select graphile_worker.add_job('noop', json_build_object('number', n, 'text', $2::text))
   from generate_series(1, $1::int) n`,
  [jobs, text],
);
await pool.query("vacuum analyze");

let done = 0;
let finished;
const handled = new Promise((resolve) => { finished = resolve; });
const began = process.hrtime.bigint();
const runner = await run({
  pgPool: pool,
  noHandleSignals: true,
  logger,
  preset: {
    worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
  },
  taskList: { noop: () => { if (++done === jobs) finished(); } },
});
await handled;
await runner.stop();
const seconds = Number(process.hrtime.bigint() - began) / 1e9;
const left = (await pool.query("select count(*)::int as n from graphile_worker._private_jobs")).rows[0].n;
await pool.end();
console.log(JSON.stringify({ done: done - left, seconds }));
